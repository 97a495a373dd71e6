"""Fill in what only a release knows; see ``python packaging/fill.py --help``."""

import argparse
import hashlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNKNOWN = ("HOME_URL", "OWNER", "SHA256")
FILES = (
    "mdakit/metadata.yaml",
    "conda/recipe.yaml",
    "spack/package.py",
    "easybuild/*.eb",
    "workflows/snakemake/meta.yaml",
)


def main():
    """Write the files below --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True, metavar="URL")
    parser.add_argument("--owner", required=True, metavar="NAME")
    parser.add_argument("--sdist", required=True, type=Path, metavar="FILE")
    parser.add_argument("--out", default="release", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    known = (args.home.rstrip("/"), args.owner, hashlib.sha256(args.sdist.read_bytes()).hexdigest())
    for pattern in FILES:
        for path in HERE.glob(pattern):
            text = path.read_text()
            for word, value in zip(UNKNOWN, known, strict=True):
                text = text.replace(word, value)
            target = args.out / path.relative_to(HERE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


if __name__ == "__main__":
    main()
