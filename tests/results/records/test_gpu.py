"""The samples of the GPUs: read again whatever version wrote them, cut per cell, and put into sentences."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from results.records.gpu import HEADER, GpuSample, cut_gpu_log, describe_gpu, format_sample, note_gpus, read_gpu_log

S = 1_000_000_000
ONE = GpuSample(5 * S, 0, 90.0, 61_440.0, 1755.0, 3201.0, 400.0, 65.0, 143_360.0, "none", "a", 1, 500.0)
IDLE = replace(ONE, utilisation_percent=0.0, memory_used_mib=512.0, clock_mhz=345.0, power_w=75.0, engines=0)
"""Of a GPU that no engine of the run uses."""


def write(path: Path, *samples: GpuSample) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([HEADER, *map(format_sample, samples)])
    return path


def test_samples_come_back_as_they_were_written(tmp_path: Path) -> None:
    unknown = GpuSample(6 * S, 1, None, 12.5)
    path = write(tmp_path / "gpu.csv", ONE, unknown)
    first, second = read_gpu_log(path).samples
    assert first == ONE
    assert second == unknown


def test_a_file_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu_util_A_r1.csv"
    path.write_text("t_ns,gpu,utilisation_percent,memory_used_mib,clock_mhz\n7,0,40,1000,1500\n8,0,41,10")
    first, second = read_gpu_log(path).samples
    assert first == GpuSample(7, 0, 40.0, 1000.0, 1500.0)
    assert second.clock_mhz is None
    assert first.others_mib is None


def test_a_run_that_another_version_began_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    rows = (HEADER[:-1], format_sample(ONE)[:-1], format_sample(ONE))
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    assert read_gpu_log(path).samples == (replace(ONE, others_mib=None),) * 2


def test_a_cell_gets_its_own_samples_and_their_sum(tmp_path: Path) -> None:
    log = write(
        tmp_path / "gpu.csv",
        replace(ONE, t_ns=1 * S),
        ONE,
        replace(ONE, gpu=1, utilisation_percent=70.0, temperature_c=71.0, limited_by="power cap"),
        replace(ONE, t_ns=6 * S, cell="b"),
        replace(ONE, t_ns=9 * S),
    )
    use = cut_gpu_log(log, "a", 4 * S, 8 * S, tmp_path / "cell" / "gpu_util.csv")
    assert use.utilisation == pytest.approx(0.8)
    assert (use.memory_used_mib, use.clock_mhz, use.power_w) == (122_880.0, 1755.0, 400.0)
    assert (use.temperature_c, use.limited, use.reason) == (71.0, {"power cap": 0.5}, "")
    assert len(read_gpu_log(tmp_path / "cell" / "gpu_util.csv").samples) == 2


def test_a_cell_counts_the_gpus_of_its_engines_alone(tmp_path: Path) -> None:
    hot = replace(IDLE, gpu=7, temperature_c=88.0, limited_by="hardware thermal slowdown")
    log = write(tmp_path / "gpu.csv", ONE, *(replace(IDLE, gpu=gpu) for gpu in range(1, 7)), hot)
    use = cut_gpu_log(log, "a", 0, 9 * S, tmp_path / "gpu_util.csv")
    assert use.gpus == (0,)
    assert (use.utilisation, use.clock_mhz, use.power_w) == (0.9, 1755.0, 400.0)
    assert (use.memory_used_mib, use.temperature_c, use.limited) == (61_440.0, 65.0, {})
    assert len(read_gpu_log(tmp_path / "gpu_util.csv").samples) == 8, "the others are on record"


def test_a_cell_whose_engines_use_no_gpu_has_no_numbers_of_one(tmp_path: Path) -> None:
    use = cut_gpu_log(write(tmp_path / "gpu.csv", IDLE), "a", 0, 9 * S, tmp_path / "gpu_util.csv")
    assert (use.gpus, use.utilisation, use.memory_used_mib) == ((), None, None)
    assert use.reason == "no engine of the run used a GPU"


def test_where_the_engines_gpus_are_not_known_all_count(tmp_path: Path) -> None:
    log = write(tmp_path / "gpu.csv", *(replace(one, engines=None) for one in (ONE, replace(IDLE, gpu=1))))
    assert cut_gpu_log(log, "a", 0, 9 * S, tmp_path / "gpu_util.csv").gpus == (0, 1)
    *gpus, unknown, _ = note_gpus(log, "cuda")
    assert [note.partition(" was")[0] for note in gpus] == ["GPU 0", "GPU 1"]
    assert unknown == "Which of these GPUs the run's engines used is not recorded: numbers of GPUs are of all of them."


def test_a_cell_without_samples_says_why(tmp_path: Path) -> None:
    log = tmp_path / "gpu.csv"
    log.write_text(",".join(HEADER) + "\n# this host has no NVIDIA driver: no GPU is used\n")
    use = cut_gpu_log(log, "a", 0, S, tmp_path / "gpu_util.csv")
    assert (use.utilisation, use.power_w) == (None, None)
    assert use.reason == "this host has no NVIDIA driver: no GPU is used"
    assert (tmp_path / "gpu_util.csv").read_text().endswith("# this host has no NVIDIA driver: no GPU is used\n")
    assert "no GPU was sampled" in cut_gpu_log(write(log, ONE), "b", 0, S, tmp_path / "gpu_util.csv").reason


def test_the_report_names_what_each_gpu_did_and_the_cells_whose_clocks_were_limited(tmp_path: Path) -> None:
    hot = replace(
        ONE, t_ns=6 * S, clock_mhz=1200.0, power_w=700.0, temperature_c=84.0, limited_by="power cap", cell="b"
    )
    gpu, cells = note_gpus(write(tmp_path / "gpu.csv", ONE, replace(hot, cell="b")), "cuda")
    assert "clock 1478 MHz in the median, 1200 at the lowest" in gpu
    assert "550 W in the mean, 700 at the most" in gpu
    assert "at most 84 °C" in gpu
    assert "at most 60.0 of 140 GiB in use" in gpu
    assert "`b` (power cap 100 % of the time)" in cells
    assert "`a`" not in cells


def test_the_report_speaks_of_the_gpus_of_the_runs_engines(tmp_path: Path) -> None:
    limited = replace(IDLE, gpu=3, limited_by="power cap")
    log = write(tmp_path / "gpu.csv", replace(ONE, gpu=2), limited, *(replace(IDLE, gpu=gpu) for gpu in (0, 1)))
    used, others, clocks = note_gpus(log, "cuda")
    assert used.startswith("GPU 2 was sampled once a second (1 times) while engines of this run used it: busy 90 %")
    assert others == (
        "No engine of this run used GPUs 0, 1, 3 of this host: `gpu.csv` has the samples, and no number here includes "
        "them."
    )
    assert clocks == "Nothing limited the clocks of a GPU that the run's engines used."
    assert note_gpus(write(tmp_path / "gpu.csv", IDLE), "cpu") == ()
    assert note_gpus(tmp_path / "gpu.csv", "cuda") == ("No GPU was sampled while an engine of this run used it.",)


def test_the_report_says_that_other_processes_used_a_gpu_of_the_run(tmp_path: Path) -> None:
    shared = [replace(ONE, t_ns=second * S, others_mib=mib) for second, mib in enumerate((6144.0, 12_288.0, 1000.0))]
    alone = [replace(ONE, t_ns=second * S) for second in (3, 4)]
    free = [replace(ONE, gpu=1), replace(IDLE, gpu=2, others_mib=90_000.0)]
    notes = note_gpus(write(tmp_path / "gpu.csv", *shared, *alone, *free), "cuda")
    (note,) = (one for one in notes if "ther processes" in one)
    assert note == (
        "Other processes held up to 12.0 GiB of GPU 0 in 40 % of the seconds: they can have slowed its cells."
    )


@pytest.mark.parametrize(("gpus", "named"), [((0,), "GPU 0"), ((0, 3), "GPUs 0, 3")])
def test_the_report_says_where_other_processes_are_not_known(gpus: tuple[int, ...], named: str, tmp_path: Path) -> None:
    known = replace(ONE, gpu=5)
    samples = [replace(ONE, gpu=gpu, others_mib=None) for gpu in gpus]
    notes = note_gpus(write(tmp_path / "gpu.csv", *samples, known), "cuda")
    assert [one for one in notes if "ther processes" in one] == [
        f"Whether other processes used {named} is not recorded."
    ]


def test_a_run_that_wanted_gpus_says_that_none_was_sampled(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    assert note_gpus(path, "cuda") == ()
    path.write_text(",".join(HEADER) + "\n# NVML lists no GPU\n")
    assert note_gpus(path, "cuda") == ("No GPU was sampled: NVML lists no GPU.",)
    assert note_gpus(path, "cpu") == ()


def test_a_gpu_in_a_few_words() -> None:
    assert describe_gpu(ONE) == "GPU 0 90 % 1755 MHz 400 W 65 °C 60.0 GiB"
    assert describe_gpu(GpuSample(1, 3, None, 512.0, limited_by="power cap")) == "GPU 3 0.5 GiB, power cap"
