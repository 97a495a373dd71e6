"""Advice from measurements: worked out by hand, and the same however often it is asked."""

import builtins
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from advise_cases import N_FRAMES, io_bound, measurements, run, spread, trial

import mdio
from mdio.advisor.forecast import Calibration, Forecaster, read_calibration
from mdio.advisor.measure import fit_conversion
from mdio.advisor.measurements import (
    load_measurements,
    measurements_from,
    save_measurements,
    segments_for,
)
from mdio.advisor.profile import load_profile
from mdio.advisor.recommend import recommend
from mdio.advisor.report import headline, text_lines
from mdio.cli.main import main
from mdio.core.errors import PlanError, SourceError

RECORDED = Path(__file__).parents[1] / "golden/advise_rmsd_xtc.json"
MS = 1e-3


def total_of(advice, name):
    return next(option.total for option in advice.options if option.name == name)


@pytest.mark.parametrize(
    ("passes", "layout", "total_s"),
    [(1, "as-is", 10.0), (2, "segments", 18.0), (3, "zarr", 23.0), (100, "zarr", 120.0)],
)
def test_the_least_total_wins(passes, layout, total_s):
    advice = recommend(io_bound(), 1, passes)
    if (passes, layout) == (2, "segments"):  # 2 + 2 x 8 = 18 against 20 and 22
        assert advice.recommended.segments == 6  # 400 MB at 64 MiB each
    assert advice.recommended.layout == layout
    assert total_of(advice, layout).total_s == pytest.approx(total_s)


def test_parts_of_a_pass_and_its_band():
    one = total_of(recommend(io_bound(), 1), "as-is")
    assert one.run.t_io_s == pytest.approx(9.0)
    assert one.run.t_comp_s == pytest.approx(1.0)
    assert one.convert_s == 0.0
    assert one.low_s < one.total_s < one.high_s
    # The sample is 1% of the frames: 5% of doubt, and 1% of spread of each part.
    assert one.high_s / one.total_s - 1 == pytest.approx(0.05, abs=0.01)


def test_two_workers_take_half_of_what_they_took_two_at_a_time():
    ms = MS
    one = measurements(trial("as-is", [run(1, ms, 0.0), run(2, 1.5 * ms, 0.0, startup_s=0.5)]))
    assert total_of(recommend(one, 1), "as-is").total_s == pytest.approx(10.0)
    assert total_of(recommend(one, 2), "as-is").total_s == pytest.approx(0.5 + 7.5)


def test_more_ranks_than_cores_take_turns():
    one = measurements(trial("as-is", [run(1, MS, 0.0), run(2, MS, 0.0)]))
    advice = recommend(one, 8)
    assert total_of(advice, "as-is").total_s == pytest.approx(5.0)
    assert advice.recommended.ranks == advice.recommended.useful_ranks == 2
    assert any("take turns" in reason for reason in advice.reasons)


def test_a_machine_may_have_more_cores_than_were_measured():
    one = measurements(trial("as-is", [run(1, MS, 0.0)]), cores=8)
    assert total_of(recommend(one, 4), "as-is").total_s == pytest.approx(10.0 / 4)


def test_headline_table_and_command_are_of_the_same_ranks():
    """Where more do not help, all are of fewer than were asked for; converting takes all."""
    runs = [run(1, MS, 0.0), run(2, MS, 0.0, startup_s=0.5)]
    fast = [run(1, MS / 10, 0.0), run(2, MS / 10, 0.0, startup_s=0.5)]
    found = measurements(trial("as-is", runs), trial("zarr", fast, convert_s=1.0))
    advice = recommend(found, 2, 10)
    assert (advice.ranks, advice.ranks_asked, advice.recommended.ranks) == (1, 2, 1)
    assert headline(advice).startswith("use zarr, with 1 rank instead of 2: ")
    assert total_of(advice, "as-is").run.n_ranks == total_of(advice, "zarr").run.n_ranks == 1
    convert, analyze = advice.commands
    assert convert.endswith("-w 2") and "-w" not in analyze
    assert any(reason.startswith("more ranks than 1 do not help") for reason in advice.reasons)


def test_whole_chunks_make_blocks_uneven():
    runs = [run(1, MS, 0.0), run(2, MS, 0.0)]
    even = measurements(trial("as-is", runs), trial("zarr", runs, chunk_frames=4000))
    found = total_of(recommend(even, 2), "zarr").run
    # Chunks of 4,000 frames in 10,000: one worker has 6,000 (or 4,000), the other the rest.
    assert found.t_total_s == pytest.approx(6.0)
    assert found.t_imbalance_s == pytest.approx(1.0)


def test_break_even_is_where_totals_cross():
    advice = recommend(io_bound(), 1, 1)
    assert (advice.break_even_passes, advice.break_even_layout) == (1, "segments")  # 2/(10-8)
    advice = recommend(io_bound(), 1, 100)
    assert (advice.break_even_passes, advice.break_even_layout) == (3, "zarr")  # 20/(10-1)
    only = measurements(
        trial("as-is", [run(1, MS, 0)]), trial("zarr", [run(1, MS, 0)], convert_s=1)
    )
    assert recommend(only, 1).break_even_passes is None


def test_what_lies_within_the_noise_is_left_simple():
    near = measurements(
        trial("as-is", [run(1, 1.02 * MS, 0.0)]),
        trial("zarr", [run(1, 1.0 * MS, 0.0)]),
        trial("h5md", [run(1, 1.01 * MS, 0.0)]),
    )
    advice = recommend(near, 1)
    assert advice.recommended.layout == "as-is"
    assert any("by less than the noise" in reason for reason in advice.reasons)
    far = measurements(trial("as-is", [run(1, 1.2 * MS, 0)]), trial("zarr", [run(1, MS, 0)]))
    assert recommend(far, 1).recommended.layout == "zarr"
    noisy = measurements(
        trial("as-is", [run(1, 1.2 * MS, 0, share=0.9)]), trial("zarr", [run(1, MS, 0, share=0.9)])
    )
    assert recommend(noisy, 1).recommended.layout == "zarr"  # noise excuses no fifth


@pytest.mark.parametrize(
    ("ratio", "bound"),
    [(0.01, "io"), (1.0, "io"), (5.0, "balanced"), (12.0, "compute"), (None, "compute")],
)
def test_bound(ratio, bound):
    assert recommend(io_bound(ratio=ratio), 1).bound == bound


def test_the_papers_rule_stands_beside():
    slow = recommend(io_bound(ratio=200.0), 1, 100)
    assert slow.rule.layout == "as-is"
    assert not slow.rule.agrees
    assert "stored group" in slow.rule.why_not
    fast = recommend(io_bound(), 1, 1)
    assert (fast.rule.layout, fast.rule.gather, fast.rule.agrees) == (
        "segments",
        "one-sided",
        False,
    )
    assert "because converting costs" in fast.rule.why_not
    assert recommend(io_bound(hdf5=True), 1).rule.layout == "h5md"
    assert recommend(io_bound(), 1, 2).rule.agrees
    others = [trial("as-is", [run(1, MS, 0)]), trial("segments of dcd", [run(1, MS, 0)])]
    chunked = recommend(measurements(*others, ratio=0.01), 1, 1).rule
    assert chunked.layout == "segments"
    assert "with segments of dcd, " in chunked.why_not
    assert "because" not in chunked.why_not  # both take as long


def test_the_reason_against_the_rule_is_what_takes_longer():
    """A conversion of no time at all explains no longer passes."""
    slower = trial("segments of dcd", [run(1, 2 * MS, 0)], convert_s=0.1)
    others = [trial("as-is", [run(1, MS, 0)]), trial("segments", [run(1, 3 * MS, 0)]), slower]
    rule = recommend(measurements(*others, ratio=0.01), 1, 100).rule
    assert "with segments of dcd, " in rule.why_not
    assert rule.why_not.endswith("because one pass takes 20 s instead of 10 s")


def test_what_does_not_fit_or_failed_is_not_recommended():
    ms = MS
    found = measurements(
        trial("as-is", [run(1, ms, 0)]),
        trial("zarr", [run(1, 0.0, 0.001 * ms)], fits=False),
        trial("h5md", [], problem="h5py is not installed"),
    )
    advice = recommend(found, 1)
    assert advice.recommended.layout == "as-is"
    options = {option.name: option for option in advice.options}
    assert "do not fit" in options["zarr"].problem
    assert options["h5md"].to_json()["predicted_total_s"] is None
    assert "h5py" in str(advice)
    text = "\n".join(text_lines(advice))
    assert "note: zarr: 976.6 KiB do not fit into the target folder" in text
    assert "nothing else could be measured, or fits" in text and "never pays" not in text


def test_cold_times_count_where_memory_is_too_small():
    runs = [run(1, MS, 0.0), run(1, 5 * MS, 0.0, cache="cold")]
    assert total_of(recommend(measurements(trial("as-is", runs)), 1), "as-is").total_s == (
        pytest.approx(10.0)
    )
    large = measurements(trial("as-is", runs, nbytes=1e12))
    assert total_of(recommend(large, 1), "as-is").total_s == pytest.approx(50.0)


def test_what_comes_before_a_pass_counts_in_each():
    found = replace(io_bound(), t_prepare_s=0.5)
    advice = recommend(found, 1, 3)
    assert total_of(advice, "as-is").total_s == pytest.approx(31.5)
    assert total_of(advice, "zarr").total_s == pytest.approx(24.5)
    there = recommend(found, 24, 3, load_profile("comet"))
    before = recommend(io_bound(), 24, 3, load_profile("comet"))
    for name in ("as-is", "zarr"):
        more_s = total_of(there, name).total_s - total_of(before, name).total_s
        assert more_s == pytest.approx(1.5)


def test_bands_that_overlap_are_told():
    wide = [replace(run(1, 0.9 * MS, 0.1 * MS), t_io_frame_s=spread(0.9 * MS, 0.8))]
    near = trial("zarr", [run(1, 0.7 * MS, 0.1 * MS)])
    advice = recommend(measurements(trial("as-is", wide), near), 1)
    assert advice.recommended.layout == "zarr"
    assert any("overlap:" in text and "may recommend the source" in text for text in advice.reasons)
    advice = recommend(measurements(trial("as-is", [run(1, 0.9 * MS, 0.1 * MS)]), near), 1)
    assert not any("overlap:" in text for text in advice.reasons)


def test_commands_are_those_of_the_advice():
    convert, analyze = recommend(io_bound(), 2, 100).commands
    assert convert.startswith("mdio convert adk.xtc out/adk.zarr -s adk.psf")
    assert convert.endswith("-w 2")
    # The output holds the topology, which is dear to read again.
    assert "mdio analyze rmsd out/adk.zarr --select 'name CA'" in analyze
    (alone,) = recommend(io_bound(), 1, 1).commands
    assert alone.startswith("mdio analyze rmsd adk.xtc -s adk.psf")
    found = io_bound()
    for path in ("out/adk.zarr", "./out/adk.zarr/"):
        found = replace(found, source=replace(found.source, paths=(path,)))
        convert, analyze = recommend(found, 2, 100).commands
        assert convert.startswith(f"mdio convert {path} out/adk-2.zarr ")
        assert "mdio analyze rmsd out/adk-2.zarr " in analyze


def test_copies_for_every_node():
    slow, fast = [run(1, MS, 0.0)], [run(1, MS / 10, 0.0)]
    found = measurements(trial("as-is", slow), trial("local-copy", fast, convert_s=1.0))
    copy, analyze = recommend(found, 1, 1).commands
    assert copy == "cp adk.xtc /scratch"
    assert analyze.startswith("mdio analyze rmsd /scratch/adk.xtc")
    copy, _ = recommend(found, 48, 100, load_profile("comet")).commands
    assert copy == "mpiexec -n 2 -ppn 1 cp adk.xtc /scratch"


def test_a_cluster_is_modelled():
    comet = load_profile("comet")
    advice = recommend(io_bound(), 192, 1, comet)
    assert advice.machine == "comet"
    assert len(advice.curves["as-is"]) > 8
    run_192 = total_of(advice, "as-is").run
    assert run_192.t_contention_s > 0
    assert total_of(advice, "segments").run.t_contention_s == 0
    assert advice.commands[-1].startswith(f"mpiexec -n {advice.recommended.ranks} mdio analyze")
    assert "--gather" in advice.commands[-1]
    told = f"published rule: {advice.rule.layout}, {advice.rule.gather} gather ("
    assert any(line.startswith(told) for line in text_lines(advice))
    assert not any("gather" in line for line in text_lines(recommend(io_bound(), 2, 1)))
    for file_system in ("lustre", "beegfs"):
        striped = recommend(io_bound(target_fs=file_system), 192, 100, comet)
        assert striped.recommended.stripe["count"] == 1
        assert "--stripe-count 1" in striped.commands[0]
    spread = recommend(io_bound(target_fs="ceph"), 192, 100, comet)
    assert spread.recommended.stripe["count"] is None


def test_segments_are_as_many_as_ranks_or_more():
    assert segments_for(10_000, 40_092, 192) == 192
    assert segments_for(10_000, 40_092, 1) == 6  # 400 MB at 64 MiB each
    assert segments_for(3, 40_092, 192) == 3


def test_calibration_moves_the_forecast():
    whole = Calibration("as-is", 1, N_FRAMES, 18.0, 1.0)
    advice = recommend(io_bound(), 1, 1, None, [whole])
    assert total_of(advice, "as-is").total_s == pytest.approx(19.0)
    assert total_of(advice, "segments").run.t_io_s == pytest.approx(14.0)
    with pytest.raises(PlanError, match="no layout 'nope'"):
        recommend(io_bound(), 1, 1, None, [replace(whole, layout="nope")])


def test_calibration_on_the_machine_of_a_profile():
    comet = load_profile("comet")
    slow = Calibration("as-is", 48, N_FRAMES, 90.0, 10.0)
    before = total_of(recommend(io_bound(), 48, 1, comet), "as-is").run.t_total_s
    after = total_of(recommend(io_bound(), 48, 1, comet, [slow]), "as-is").run.t_total_s
    assert abs(after - 4.0) < abs(before - 4.0)


def test_read_calibration(tmp_path):
    record = {"schema": "mdio-timings-1", "n_frames": 98, "workers": 2, "gather": None}
    record |= {"t_total_s": 1.0, "t_io_s": 0.5, "t_comp_s": 0.4, "t_open_s": 0.0}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(record))
    assert read_calibration(f"zarr={path}").layout == "zarr"
    assert read_calibration(str(path)).layout == "as-is"
    words = ["advise", "--replay", str(RECORDED)]
    assert main([*words, "--calibrate", str(path), "--calibrate", f"zarr={path}"]) == 0
    for change in ({"schema": "other"}, {"n_frames": 0}, {"t_io_s": "x"}, {"workers": None}):
        path.write_text(json.dumps(record | change))
        with pytest.raises(SourceError, match=r"t\.json"):
            read_calibration(str(path))
    path.write_text("[" * 100_000)
    with pytest.raises(SourceError, match="not JSON"):
        read_calibration(str(path))


def test_conversions_of_two_lengths_tell_the_fixed_part():
    fixed, frame = fit_conversion([1.0 + 10.0] * 3, [1.0 + 2.5] * 3, 1000, 250, is_whole=False)
    assert fixed.median == pytest.approx(1.0)
    assert frame.median == pytest.approx(0.01)
    fixed, frame = fit_conversion([11.0], [3.5], 1000, 250, is_whole=True)
    assert (fixed.median, frame.median) == (0.0, pytest.approx(0.011))
    fixed, frame = fit_conversion([1.0], [9.0], 1000, 250, is_whole=False)  # noise beyond sense
    assert fixed.median >= 0
    assert frame.median > 0


def test_recorded_measurements_give_the_same_advice_without_clock_or_data(monkeypatch):
    found = load_measurements(RECORDED)
    comet = load_profile("comet")

    def forbidden(*_args, **_kwargs):
        raise AssertionError("advice must follow from numbers alone")

    with monkeypatch.context() as patch:
        for name in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, name, forbidden)
        patch.setattr(builtins, "open", forbidden)
        patch.setattr(Path, "stat", forbidden)
        first = recommend(found, 2, 1)
        second = recommend(found, 2, 1)
        many = recommend(found, 1, 100)
        cluster = recommend(found, 192, 5, comet)
    assert first.to_json() == second.to_json()
    assert first.recommended.layout == "as-is"
    assert many.recommended.layout in ("h5md", "zarr")
    assert many.recommended.groups == {"selection": "name CA"}
    assert many.bound == "io"
    assert cluster.recommended.layout != "as-is"
    json.dumps(cluster.to_json(), allow_nan=False)


def test_measurements_save_and_load(tmp_path):
    path = tmp_path / "m.json"
    save_measurements(io_bound(), path)
    assert load_measurements(path) == io_bound()
    said = tmp_path / "advice.json"
    said.write_text(json.dumps(recommend(io_bound(), 1).to_json()))
    assert load_measurements(said) == io_bound()


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.update(schema="x"),
        lambda d: d["source"].update(n_frames=0),
        lambda d: d["source"].update(n_frames="many"),
        lambda d: d["host"].pop("cores"),
        lambda d: d["host"].update(cores=-1),
        lambda d: d.update(trials=[]),
        lambda d: d["trials"][0].update(more=1),
        lambda d: d["trials"][0]["runs"][0]["t_io_frame_s"].update(median=float("nan")),
        lambda d: d.update(trials={}),
    ],
)
def test_damaged_measurements_are_refused(damage):
    data = json.loads(RECORDED.read_text())
    damage(data)
    with pytest.raises(SourceError, match="somewhere"):
        measurements_from(data, "somewhere")


def test_numbers_below_one_are_refused():
    for ranks, passes in ((0, 1), (1, 0), (-3, 1)):
        with pytest.raises(PlanError, match="1 or more"):
            mdio.advise(replay=RECORDED, ranks=ranks, passes=passes)


def test_spread():
    assert spread(2.0, 0.1).relative == pytest.approx(0.1)
    assert spread(0.0).relative == 0.0


@pytest.mark.parametrize(
    ("share", "one", "four"), [(1.0, 20.0, 5.0), (0.0, 10.0, 10.0), (0.2, 12.0, 9.0)]
)
def test_only_what_is_computed_is_shared_among_converting_workers(share, one, four):
    """The trial took 10 s with two workers."""
    more = {"convert_workers": 2, "convert_cpu_share": share}
    zarr = trial("zarr", [run(1, 1e-3, 1e-4)], convert_s=10.0, **more)
    forecaster = Forecaster(measurements(zarr, cores=4))
    assert forecaster.total(zarr, 1, 1).convert_s == pytest.approx(one)
    assert forecaster.total(zarr, 4, 1).convert_s == pytest.approx(four)
