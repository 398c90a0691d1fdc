"""``fit`` in two processes: every process counts the steps of its own share."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tiny_processes import die, together
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import localscale
from localscale.errors import TrainingError

PROGRAM = """
import atexit
import os
import sys
from pathlib import Path
import torch


@atexit.register  # before fit's own function, so that it is called after it
def look_at_threads():
    names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
    Path(sys.argv[1], f"threads{os.environ['RANK']}").write_text(" ".join(names))


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
    # A thread of a process group that outlives it can abort the process.
    for rank in range(2) if sys.platform == "linux" else ():
        threads = (tmp_path / "run" / f"threads{rank}").read_text(encoding="utf-8")
        assert "python" in threads
        assert "gloo" not in threads


def fit_until_the_second_dies(folder: Path) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 3)

    def after_epoch(report: Any) -> None:
        if os.environ["RANK"] == "1":
            die()

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    try:
        localscale.fit(model, DataLoader(data), epochs=3, cpu=True, progress=False, out=folder, callbacks=[after_epoch])
    except TrainingError as error:
        (folder / "told.txt").write_text(str(error), encoding="utf-8")
        raise SystemExit(1) from None


def test_the_death_of_one_process_ends_the_other_with_one_sentence(tmp_path: Path) -> None:
    together(fit_until_the_second_dies, tmp_path, ends=(1, -signal.SIGKILL))
    told = (tmp_path / "told.txt").read_text(encoding="utf-8")
    assert told.startswith("process 0 of 2 lost another process of this training, whose own output may say why")
    assert told.endswith("call ls.fit again, which goes on from the last checkpoint if it has the same out")
    assert "\n" not in told
