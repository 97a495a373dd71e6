"""Measuring with limits that make it take seconds."""

from mdio.advisor.measure import Limits, measure

QUICK = Limits(sample_nbytes=1 << 20, repeats=1, max_repeats=1, frame_s=2.0, enough_s=0.0)


def quickly(adk, target, **more):
    given = {"analysis": "rmsd", "select": "name CA", "top": adk["psf"], "ranks": 1} | more
    return measure(given.pop("source", adk["xtc"]), target=target, limits=QUICK, **given)
