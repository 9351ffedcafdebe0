# SPDX-License-Identifier: Apache-2.0
"""Check a configuration against a model's tokenizer and configuration files, without loading weights.

    python -m sequence_hooks check MODEL --special-kwargs '{"protocol": "npr"}'

Exit status: 0 if they fit, 1 if something does not.
"""

import argparse
import sys
from collections.abc import Sequence

from sequence_hooks.check.files import ModelFiles
from sequence_hooks.check.findings import Finding, findings
from sequence_hooks.config import SpecialKwargs


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each check, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m sequence_hooks check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, or a name on the Hugging Face hub")
    parser.add_argument("--special-kwargs", required=True, metavar="JSON", help="as vLLM takes it; or @FILE")
    parser.add_argument("--max-model-len", type=int, help="as for vLLM; by default the model's")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code of the model's repository")
    options = parser.parse_args(arguments)
    try:
        special_kwargs = SpecialKwargs.from_json(options.special_kwargs)
    except (TypeError, ValueError) as error:
        return _report([Finding("fields", False, str(error))])
    assert special_kwargs is not None
    try:
        files = ModelFiles.of(options.model, options.max_model_len, options.trust_remote_code)
    except (OSError, ValueError) as error:
        return _report([Finding("model", False, f"{options.model} cannot be read: {error}")])
    return _report(list(findings(special_kwargs, files)))


def _report(found: Sequence[Finding]) -> int:
    for each in found:
        print(f"{each.name:<9} {'ok' if each.fits else 'FAILS':<6} {each.says}")
    return int(not all(each.fits for each in found))


if __name__ == "__main__":
    sys.exit(main())
