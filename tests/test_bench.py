"""The benchmark's own arithmetic and bookkeeping; nothing here needs PyTorch."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import work
from bench.__main__ import main
from bench.contest import Contest, Preset
from bench.device_memory import PERIOD, DeviceMemory
from bench.machine import Machine
from bench.options import parse
from bench.problem import Problem, load_problem, photograph, save_problem
from bench.processes import ROOT, run, together
from bench.quality import curve_of, decibels, epochs_to
from bench.report import tables
from bench.report.files import write
from bench.results import Results, load, save
from bench.rows import CONVTRAIN, PYTORCH, Row, affordable_epochs, fastest
from bench.vulkan import trainer


def row(side: str, name: str, ms: float | None, **more: object) -> Row:
    return Row(side, name, 8, 8, 8, ms_per_epoch=ms, error=None if ms else "it broke", **more)  # type: ignore[arg-type]


def test_work_of_the_seed_preset() -> None:
    problem = Problem()
    assert problem.pixels == 291_600
    assert work.matrix_flops(problem) == pytest.approx(229e9, rel=0.01)
    assert work.depthwise_flops(problem) == pytest.approx(43.9e9, rel=0.01)
    assert work.least_bytes(problem) == pytest.approx(1.87e9, rel=0.01)


def test_a_problem_survives_the_way_to_another_process(tmp_path: Path) -> None:
    problem = Problem(height=12, width=12, nf=8, layers=1)
    save_problem(tmp_path / "here", problem, photograph(12))
    found, target = load_problem(tmp_path / "here")
    assert found == problem
    assert target.shape == (12, 12, 3)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([(1, 20.0), (2, 29.0), (3, 31.0)], 3.0),  # every epoch is known: the first that gets there
        ([(1, 20.0), (21, 28.0), (41, 32.0)], 31.0),  # interpolated
        ([(1, 31.0)], 1.0),
        ([(1, 20.0)], None),
        ([], None),
    ],
)
def test_epochs_to_a_psnr(curve: list[tuple[int, float]], expected: float | None) -> None:
    assert epochs_to(curve, 30.0) == expected


def test_decibels_of_useless_errors() -> None:
    assert decibels(1e-3) == pytest.approx(30)
    assert decibels(float("nan")) is decibels(0.0) is None
    assert curve_of([1e-2, float("inf"), 1e-3]) == [(1, pytest.approx(20)), (3, pytest.approx(30))]


def test_ratios_and_failures() -> None:
    rows = [
        row(CONVTRAIN, "fused", 2.0, epochs=2, curve=[(1, 29.0), (2, 30.5)], psnr_u8=39.25),
        row(PYTORCH, "graph-bf16", 12.0),
        row(PYTORCH, "graph-bf16-toeplitz", 5.0),
        row(PYTORCH, "compile-bf16", None),
    ]
    best = fastest(found for found in rows if found.side == PYTORCH)
    assert best is rows[2]
    assert fastest(rows[3:]) is None
    text = tables.comparison(rows, epochs=2)
    cells = [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]]
    assert cells[:8] == ["convtrain", "fused", "2", "2.00", "2.50×", "6.00×", "0.00", "–"]
    assert cells[10] == "39.25"
    assert "39.25" not in tables.comparison(rows, epochs=3)  # it was not trained to the end
    assert "compile-bf16" not in text
    assert "it broke" in tables.failures(rows)
    assert tables.failures(rows[:3]) == ""


def test_slow_ones_train_for_fewer_epochs() -> None:
    assert affordable_epochs(600, 0.002, 8.0) == affordable_epochs(600, 9.9, None) == 600
    assert affordable_epochs(600, 0.04, 8.0) == 50
    assert affordable_epochs(600, 0.4, 8.0) == 20
    assert affordable_epochs(600, 9.9, 8.0) == 10


def test_tables_are_drawn_again_from_what_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ceilings = {"copy_bytes_per_second": 4e12, "matrix_flops_per_second": 7e14, "how": "measured"}
    machine = Machine(True, {"name": "GPU", "driver_info": "1.0"}, None, ceilings, ("one side only",), "CPU")
    rows = [row(CONVTRAIN, "fused", 2.0, epochs=2, curve=[(1, 29.0), (2, 30.5)]), row(PYTORCH, "eager-bf16", None)]
    results = Results(machine, Problem(), 2, 2, rows, [row(CONVTRAIN, "fused", 2.0)])
    write(results, tmp_path / "first")
    assert load(tmp_path / "first" / "bench.json") == results
    assert main(["--plot", str(tmp_path / "first" / "bench.json"), "--output", str(tmp_path / "again")]) == 0
    assert "one side only" in capsys.readouterr().out
    assert (tmp_path / "again" / "bench.md").read_bytes() == (tmp_path / "first" / "bench.md").read_bytes()
    assert not list((tmp_path / "again").glob("*.json"))


def some_results() -> Results:
    machine = Machine(False, None, None, {}, (), "CPU")
    return Results(machine, Problem(), 2, 2, [row(CONVTRAIN, "fused", 2.0, epochs=2, curve=[(1, 29.0)])])


@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("stop", [None, KeyboardInterrupt])
def test_a_run_that_measures_nothing_leaves_earlier_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException] | None, failed: int
) -> None:
    def compare(contest: Contest) -> None:
        for _ in range(failed):
            contest._keep(contest.results.rows, Row(CONVTRAIN, "fused", 16, 16, 8, error="there is no device 99"))
        if stop:
            raise stop

    monkeypatch.setattr(program, "look", lambda options: some_results().machine)
    monkeypatch.setattr(Contest, "prepare", lambda contest: None)
    monkeypatch.setattr(Contest, "compare", compare)
    write(some_results(), tmp_path / "kept")
    before = {file: file.read_bytes() for file in (tmp_path / "kept").iterdir()}
    for name in ("kept", "new/folder"):
        assert main(["--quick", "--output", str(tmp_path / name)]) != 0
    assert {file: file.read_bytes() for file in (tmp_path / "kept").iterdir()} == before
    assert [*tmp_path.iterdir()] == [tmp_path / "kept"]


@pytest.mark.parametrize("full", ["results", "tables", "work"])
def test_a_disk_that_fills_up_on_the_way_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: str
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")

    def compare(contest: Contest) -> None:
        for number in (1.0, 2.0):
            contest._keep(contest.results.rows, row(CONVTRAIN, f"plan-{number}", number, epochs=2))

    monkeypatch.setattr(program, "look", lambda options: some_results().machine)
    monkeypatch.setattr(Contest, "prepare", lambda contest: no_space() if full == "work" else None)
    monkeypatch.setattr(Contest, "compare", compare)
    if full == "results":
        monkeypatch.setattr(program, "keep", no_space)
    if full != "work":
        monkeypatch.setattr(program, "write", no_space)
    assert main(["--quick", "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    if full == "work":
        assert printed.err.endswith("stopped: No space left on device (a file)\n")
        return
    assert "plan-1.0" in printed.out
    assert "plan-2.0" in printed.out
    said = f"results cannot be written to {tmp_path}: No space left on device"
    assert printed.err.count(said) == (3 if full == "results" else 1)


def test_a_failed_write_leaves_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = save(some_results(), tmp_path / "bench.json")
    before = kept.read_bytes()

    def no_space(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(OSError, match="No space"):
        save(some_results(), kept)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"bench.json": before}


def test_plots_of_the_results_before_are_removed(tmp_path: Path) -> None:
    (tmp_path / "side.png").touch()
    (tmp_path / "mine.png").touch()
    write(some_results(), tmp_path)
    assert not (tmp_path / "side.png").exists()
    assert (tmp_path / "mine.png").exists()


def test_a_device_is_not_read_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plot", "/dev/zero"]) == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": [], "sweep": [], "machine": {"notes": []}}'])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bench.json").write_text(content)
    assert main(["--plot", str(tmp_path / "bench.json")]) == 2
    assert "does not hold results" in capsys.readouterr().err


def test_growth_table_has_a_cell_for_every_point() -> None:
    rows = [row(CONVTRAIN, "fused", 2.0), row(PYTORCH, "eager-bf16", 4.0)]
    rows.append(Row(CONVTRAIN, "fused", 16, 16, 8, ms_per_epoch=8.0))
    lines = tables.growth(rows, tables.contenders(rows)).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["8×8", "8", "2.000", "4.000"]
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["16×16", "8", "8.000", "–"]


def test_a_process_that_fails_is_an_outcome() -> None:
    failing = run([sys.executable, "-c", "raise ValueError('no luck')"], timeout=20)
    assert failing.data is None
    assert failing.error == "ValueError: no luck"
    assert run([sys.executable, "-c", "print('hello')"], timeout=20).error == "it printed no JSON"
    assert run(["/nonexistent/program"], timeout=20).error == "/nonexistent/program: No such file or directory"
    chatty = run([sys.executable, "-c", "print('hello'); print('[1, 2]')"], timeout=20)
    assert (chatty.data, chatty.error) == ([1, 2], None)


def test_a_process_that_hangs_is_ended_with_its_children() -> None:
    started = time.perf_counter()
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    assert run([sys.executable, "-c", script], timeout=1).error == "not done after 1 s"
    assert time.perf_counter() - started < 20


def test_device_memory_is_the_largest_increase() -> None:
    steps = iter([100, 130, 170, 120])
    memory = DeviceMemory(lambda: next(steps, 110))
    time.sleep(8 * PERIOD)
    assert memory.stop() == 70
    assert DeviceMemory(None).stop() is None


def test_options() -> None:
    options = parse(["--quick", "--modes", "eager-bf16, graph-fp16-toeplitz", "--sizes", "8,16", "--no-torch"])
    assert options.modes == ("eager-bf16", "graph-fp16-toeplitz")
    assert options.sides == (8, 16)
    assert not options.sweep
    assert not options.torch
    assert parse(["--modes", ""]).modes == ()


@pytest.mark.parametrize(
    "bad", [["--prepare"], ["--modes", "eager-int4"], ["--sizes", "8,x"], ["--epochs", "0"], ["--what"]]
)
def test_bad_options(bad: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(bad)


def test_the_curve_of_a_run_leaves_out_epochs_that_were_not_finite() -> None:
    found = trainer.curve({"history": [[1, 0.1], [2, None], [3, 0.001]]})
    assert found == [(1, pytest.approx(10.0)), (3, pytest.approx(30.0))]


def test_convtrain_is_cooked_trained_and_accounted_for(tmp_path: Path) -> None:
    problem = Problem(height=12, width=12, halo=3, nf=8, layers=1, ks=3, kn=4)
    save_problem(tmp_path, problem, photograph(12))
    cooked = trainer.cook(tmp_path, problem, timeout=120)
    assert isinstance(cooked, trainer.Cooked), cooked
    assert cooked.problem == problem
    assert cooked.traffic["reference"] > 0
    found = trainer.train(cooked, "reference", 2, timeout=120, device=None)
    assert found.error is None
    assert found.epochs == 2
    assert found.ms_per_epoch
    assert found.ms_per_epoch > 0
    assert found.memory
    assert found.psnr_u8 is not None
    assert [epoch for epoch, _ in found.curve] == [1, 2]
    missing = trainer.train(cooked, "no-such-plan", 2, timeout=120, device=None)
    assert "no-such-plan" in str(missing.error)


@pytest.mark.parametrize("option", ["--timeout", "--seconds"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "1e300", "x"])
def test_bad_seconds(option: str, value: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([option, value])


@pytest.mark.parametrize("option", ["--output", "--work"])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, place: str
) -> None:
    (tmp_path / "file").touch()
    output = ["--output", str(tmp_path / "results")]
    assert main([*output, option, str(tmp_path / place)]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{tmp_path / place} cannot be used")
    assert message.count("\n") == 1


def test_a_plot_that_fails_costs_only_itself(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "epoch.png").mkdir()
    text = write(some_results(), tmp_path)
    assert f"No plot {tmp_path / 'epoch.png'}: Is a directory" in text
    assert {"bench.json", "bench.md", "quality.png"} <= {file.name for file in tmp_path.iterdir()}


def test_an_interruption_ends_the_processes_of_all_jobs() -> None:
    started = time.perf_counter()

    def job(number: int) -> object:
        if number:
            return [run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=60) for _ in range(2)]
        time.sleep(0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(job, range(3), 3)
    assert time.perf_counter() - started < 20
    assert run([sys.executable, "-c", "print(1)"], timeout=20).data == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_first_step(tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "python"  # stands in for the Python that has torch
    mark.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    mark.chmod(0o755)
    arguments = ["-m", "bench", "--no-convtrain", "--pytorch", str(mark), "--output", str(tmp_path / "results")]

    def heed() -> None:  # also where the tests run in the background
        signal.signal(number, signal.SIG_DFL)

    program = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.05)
        assert program.poll() is None
    program.send_signal(number)
    _, err = program.communicate(timeout=20)
    assert program.returncode == 130
    assert err.splitlines()[1:] == ["stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("name", ["picture.png", "problem.json"])
@pytest.mark.parametrize("left", [0, 40, None])
def test_a_half_made_folder_is_made_again(tmp_path: Path, name: str, left: int | None) -> None:
    problem = Problem(height=12, width=12, nf=8, layers=1)
    options = parse(["--work", str(tmp_path)])

    def place() -> Path:
        results = some_results()
        preset = Preset(problem, 2, (), (12,), (8,), 1, 4)
        return Contest(results.machine, options, preset, tmp_path, lambda text: None)._place(problem)

    file = place() / name
    whole = file.read_bytes()
    if left is None:
        file.unlink()
    else:
        file.write_bytes(whole[:left])
    assert place() / name == file
    assert file.read_bytes() == whole


DAMAGE: list[tuple[list[str | int], object]] = [
    (["machine", "ceilings"], {"copy_bytes_per_second": "fast"}),
    (["machine", "ceilings"], {"how": "measured"}),
    (["machine", "vulkan"], {"name": "GPU"}),
    (["machine", "cpu"], None),
    (["problem"], {}),
    (["problem", "height"], "tall"),
    (["epochs"], None),
    (["rows"], {"fused": 1}),
    (["rows", 0], None),
    (["rows", 0, "side"], "TensorFlow"),
    (["rows", 0, "side"], PYTORCH),  # which has no mode of that name
    (["rows", 0, "ms_per_epoch"], "2"),
    (["rows", 0, "ms_per_epoch"], float("nan")),
    (["rows", 0, "ms_per_epoch"], -1),
    (["rows", 0, "epochs"], 10**400),
    (["rows", 0, "curve"], [[1, "high"]]),
    (["rows", 0, "curve"], [1]),
    (["rows", 0, "name"], "\ud800"),
    (["sweep"], None),
]


@pytest.mark.parametrize(("where", "value"), DAMAGE)
def test_damaged_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: list[str | int], value: object
) -> None:
    data = json.loads(json.dumps(some_results().to_json()))
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    (tmp_path / "bench.json").write_text(json.dumps(data))
    assert main(["--plot", str(tmp_path / "bench.json"), "--output", str(tmp_path / "again")]) == 2
    assert "does not hold results" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["bench.json"]
