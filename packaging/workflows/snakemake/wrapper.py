"""Runs ``mdio convert`` (output: a trajectory) or ``mdio analyze`` (params: kernel)."""

import shlex

from snakemake.shell import shell

job = snakemake  # noqa: F821, given by the engine
log = job.log_fmt_shell(stdout=True, stderr=True)
options = job.params.get("options", "")
top = job.input.get("top")
top = f"-s {shlex.quote(top)}" if top else ""
kernel = job.params.get("kernel")
if kernel:
    shell(
        "mdio analyze {kernel} {job.input.trajectory:q} {top} -w {job.threads} "
        "-o {job.output[0]:q} {options} {log}"
    )
else:
    shell(
        "mdio convert {job.input.trajectory:q} {job.output[0]:q} {top} -w {job.threads} "
        "--force {options} {log}"
    )
