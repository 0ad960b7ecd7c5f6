"""Runs docs/verify/verify.py on many logs, for the tests of this package.

    python3 verify_many.py …/docs/verify/verify.py

Reads a JSON object a line, {"dir", "key", "checkpoints"}, and answers each with one. Most of the notes of logs that differ little are the same: whether one
verifies is computed once.
"""

import functools
import importlib.util
import json
import sys

sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
verify = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verify)
verify.verifies = functools.lru_cache(maxsize=None)(verify.verifies)

for line in sys.stdin:
    asked = json.loads(line)
    report = verify.verify(asked["dir"], asked["key"] or None, asked["checkpoints"] or [])
    print(json.dumps({"code": report.code, "text": report.text, **report.more}), flush=True)
