"""Without one of the compiled modules there is one error, which says what to do."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "package"),
    [("mdio._kernels", "mdio.core.kernels"), ("mdio._xtc", "mdio.core.xtc")],
)
def test_without_a_compiled_module_there_is_one_error(name, package):
    code = (
        f"import sys; sys.modules['{name}'] = None\n"
        "from mdio.core.errors import MdioError\n"
        "try:\n"
        f"    import {package}\n"
        "except ImportError as error:\n"
        "    print(isinstance(error, MdioError), error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"True {name}, a compiled part of mdio, cannot be imported")
    assert "make install" in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_the_command_line_says_so_too(tmp_path):
    code = (
        "import sys; sys.modules['mdio._kernels'] = None\n"
        "from mdio.cli.main import main\n"
        "sys.exit(main(['info', 'none.xtc']))\n"
    )
    (tmp_path / "none.xtc").write_bytes(bytes(100))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.count("mdio._kernels, a compiled part of mdio") == 1
    assert "Traceback" not in done.stderr
