"""A recording ``lfs`` (or another program) for tests, first on PATH."""

import json
import sys
from pathlib import Path


class FakeLfs:
    """An ``lfs`` that writes down its arguments and answers with what the test lays ready."""

    def __init__(self, folder: Path, name: str = "lfs") -> None:
        self.folder = folder
        folder.mkdir()
        script = folder / name
        script.write_text(
            f"#!{sys.executable} -SE\n"
            "import json, os, sys, time\n"
            f"with open({str(folder / 'calls')!r}, 'a') as log:\n"
            "    log.write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"answer = json.load(open({str(folder / 'answers')!r})).get(sys.argv[1], {{}})\n"
            "if 'sleep' in answer:\n"
            "    os.system(f'sleep {answer[\"sleep\"]}')\n"
            "if answer.get('makes') and not os.path.exists(sys.argv[-1]):\n"
            "    open(sys.argv[-1], 'w').close()\n"
            "sys.stdout.buffer.write(answer.get('out', '').encode('latin-1'))\n"
            "sys.stderr.write(answer.get('err', ''))\n"
            "sys.exit(answer.get('code', 0))\n"
        )
        script.chmod(0o755)
        self.answer()

    def answer(self, **by_command) -> None:
        (self.folder / "answers").write_text(json.dumps(by_command))

    @property
    def calls(self) -> list[list[str]]:
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
