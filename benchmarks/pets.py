"""Compare the size equilibrium with its control on photographs of pets, in three steps.

python -m benchmarks.pets prepare --data DIR --out FOLDER                    folders of classes, from trimaps
python -m benchmarks.pets run --data FOLDER --weights FILE --out runs/pets   train and evaluate; finished runs stay
python -m benchmarks.pets collect --data FOLDER --runs runs/pets             write results/pets.json

DIR is Oxford-IIIT Pets: trainval/BREED/NAME.jpg and test/BREED/NAME.jpg, each with NAME_trimap.png (255 object,
128 border, 0 background). FILE holds DeiT-Tiny's ImageNet weights. Flags after -- are passed on to localscale train.
"""

import argparse
from pathlib import Path

from benchmarks.results import ROOT, render
from localscale.errors import LocalScaleError
from localscale.files import write_whole


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and take one step."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    prepare = steps.add_parser("prepare", help="lay out the photographs, also with smaller animals")
    prepare.add_argument("--data", type=Path, required=True, help="folder with trainval/ and test/")
    prepare.add_argument("--out", type=Path, required=True, help="folder to write train/, val/ and smaller/ to")
    prepare.add_argument("--inpainter", default="patchmatch", help="patchmatch or telea (default: %(default)s)")
    prepare.add_argument("--quality", type=int, default=84, help="quality of the JPEG files (default: %(default)s)")
    prepare.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    prepare.add_argument("--sheet", type=Path, help="PNG of 32 photographs, before and after (default: none)")
    run = steps.add_parser("run", help="train and evaluate with localscale train and localscale evaluate")
    run.add_argument("--data", type=Path, required=True, help="folder that prepare wrote")
    run.add_argument("--weights", type=Path, required=True, help="safetensors file of deit_tiny_patch16_224")
    run.add_argument("--out", type=Path, default=Path("runs/pets"), help="folder for the runs (default: %(default)s)")
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    run.add_argument("--jobs", type=int, default=1, help="processes at a time (default: %(default)s)")
    run.add_argument("--workers", type=int, default=4, help="data workers of each process (default: %(default)s)")
    run.add_argument("--cpu", action="store_true", help="run on the CPU even if a GPU is available")
    run.add_argument("extra", nargs="*", help="after --: flags for localscale train, such as -- --epochs 1")
    answers = steps.add_parser("answers", help="write which answers of one run are right; run takes this step, too")
    answers.add_argument("folder", type=Path, help="folder of a finished run")
    answers.add_argument("--data", type=Path, required=True, help="folder that prepare wrote")
    answers.add_argument("--cpu", action="store_true", help="run on the CPU even if a GPU is available")
    collect = steps.add_parser("collect", help="write the results of all runs as JSON")
    collect.add_argument("--runs", type=Path, default=Path("runs/pets"), help="--out of run (default: %(default)s)")
    collect.add_argument("--data", type=Path, required=True, help="folder that prepare wrote")
    collect.add_argument("--json", type=Path, help="file to write (default: results/pets.json, rendered to the docs)")
    given = parser.parse_args(arguments)
    try:
        STEPS[given.step](given)
    except LocalScaleError as error:
        raise SystemExit(f"benchmarks.pets: {error}") from error


def _prepare(given: argparse.Namespace) -> None:
    from benchmarks.pets_photographs import draw_sheet, prepare  # needs OpenCV, the other steps do not

    count = prepare(given.data, given.out, inpainter=given.inpainter, quality=given.quality, jobs=given.jobs)
    print(f"{given.out}: train, val and smaller with {count} photographs")
    if given.sheet is not None:
        draw_sheet(given.out, 32).save(given.sheet)


def _run(given: argparse.Namespace) -> None:
    from benchmarks.pets_runs import run_all

    run_all(
        given.data,
        given.out,
        weights=given.weights,
        seeds=given.seeds,
        jobs=given.jobs,
        workers=given.workers,
        cpu=given.cpu,
        extra=given.extra,
    )


def _answers(given: argparse.Namespace) -> None:
    from benchmarks.pets_runs import write_answers

    write_answers(given.folder, given.data, cpu=given.cpu)


def _collect(given: argparse.Namespace) -> None:
    from benchmarks.pets_tables import as_json, collect
    from localscale.lab.pages.results import render_table

    document = collect(given.runs, given.data)
    print("\n\n".join(map(render_table, document["tables"])))
    write_whole(given.json or ROOT / "results" / "pets.json", as_json(document))
    if given.json is None:
        render()


STEPS = {"prepare": _prepare, "run": _run, "answers": _answers, "collect": _collect}


if __name__ == "__main__":
    main()
