"""Measurements made of a few round numbers, so that advice can be worked out by hand."""

from mdio.advisor.measurements import (
    Bandwidth,
    Host,
    Measurements,
    Question,
    SampleRun,
    Source,
    Spread,
    Trial,
)

N_FRAMES = 10_000


def spread(value, share=0.01):
    return Spread(value, value * (1 - share), value * (1 + share), value)


def run(workers, io_s, comp_s, *, cache="warm", open_s=0.0, startup_s=0.0, share=0.01):
    """One run; `io_s` and `comp_s` are seconds of a frame."""
    return SampleRun(
        workers,
        cache,
        100,
        spread(startup_s, share),
        spread(open_s, share),
        spread(io_s, share),
        spread(comp_s, share),
        spread(0.0),
    )


def trial(name, runs, *, convert_s=0.0, nbytes=1e6, groups=None, fits=True, problem=None, **more):
    """One option; `convert_s` is what converting all frames takes."""
    layout = name.split(" ")[0]
    given = {
        "behaves_like": {"as-is": "xtc-shared", "h5md": "hdf5"}.get(layout, "segments"),
        "convert_options": {},
        "chunk_frames": None,
        "precision": None,
        "convert_workers": 1,
    } | more
    return Trial(
        name=name,
        layout=layout,
        nbytes=nbytes,
        read_nbytes_frame=nbytes / N_FRAMES,
        stripe_nbytes=1 << 20,
        groups=groups or {},
        one_writer=layout == "h5md",
        fits=fits,
        convert_fixed_s=spread(0.0),
        convert_frame_s=spread(convert_s / N_FRAMES),
        runs=tuple(runs),
        problem=problem,
        **given,
    )


def measurements(
    *trials, ratio=0.1, cores=2, target_fs="ext4", hdf5=False, cold_problem=None, cold_rate=None
):
    return Measurements(
        version="0",
        source=Source(("adk.xtc",), "xtc", N_FRAMES, 3341, 10**9, 100),
        question=Question("rmsd", "name CA", "adk.psf", "out", 214, 8.0, {}, "/scratch"),
        host=Host(cores, 1 << 34, "ext4", None, target_fs, None, 1 << 40, cold_problem, hdf5),
        ratio_comp_io=ratio,
        trials=trials,
        bandwidths=(
            Bandwidth(1, "warm", 1e9),
            *([] if cold_rate is None else [Bandwidth(16, "cold", cold_rate)]),
        ),
        notes=(),
        seconds=1.0,
    )


def io_bound(**more):
    """As it is: 10 s a pass. Segments: 2 s, then 8 s. Zarr: 20 s, then 1 s a pass."""
    ms = 1e-3
    return measurements(
        trial("as-is", [run(1, 0.9 * ms, 0.1 * ms), run(2, 0.9 * ms, 0.1 * ms)]),
        trial("segments", [run(1, 0.7 * ms, 0.1 * ms)], convert_s=2.0),
        trial("zarr", [run(1, 0.0, 0.1 * ms)], convert_s=20.0, groups={"selection": "name CA"}),
        **more,
    )
