"""``fit`` in two processes: every process counts the steps of its own share."""

import os
import subprocess
import sys
from pathlib import Path

import localscale

PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import localscale as ls

torch.manual_seed(0)
data = TensorDataset(torch.rand(7, 3, 8, 8), torch.arange(7) % 3)
loader = DataLoader(data, batch_size=1, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
found = ls.fit(model, loader, DataLoader(data), epochs=2, cpu=True, progress=False, out=sys.argv[1])
assert [report.epoch for report in found.history] == [1, 2]
"""


def test_two_processes_train_to_the_end(tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    source = str(Path(localscale.__file__).parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": source}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, str(tmp_path / "train.py"), str(tmp_path / "run")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len((tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 2
