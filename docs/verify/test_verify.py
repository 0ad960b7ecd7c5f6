"""Tests of verify.py by itself: python3 -m unittest, in this folder."""

import os
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

import verify

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference", "audit-format.md")

# RFC 8032 §7.1: public key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


class Ed25519(unittest.TestCase):
    def test_vectors(self):
        for vector in VECTORS:
            public, message, signature = map(bytes.fromhex, vector)
            self.assertTrue(verify.verifies(public, message, signature))
            self.assertFalse(verify.verifies(public, message + b"x", signature))
            for at in range(0, 64, 7):
                other = signature[:at] + bytes([signature[at] ^ 1]) + signature[at + 1 :]
                self.assertFalse(verify.verifies(public, message, other))

    def test_scalar_beyond_the_order(self):
        public, message, signature = map(bytes.fromhex, VECTORS[0])
        scalar = int.from_bytes(signature[32:], "little") + verify.L
        self.assertFalse(verify.verifies(public, message, signature[:32] + scalar.to_bytes(32, "little")))


class Page(unittest.TestCase):
    """The log that docs/reference/audit-format.md shows."""

    def setUp(self):
        with open(PAGE, encoding="utf-8") as file:
            page = file.read()
        self.key = re.search(r"egressd/0011\S+\+ba249c37\+\S+", page)[0]
        self.files = dict(re.findall(r"(?s)`(0000000[12]\.(?:log|ckpt|tree))`(?: is)?\n\n```\n(.*?\n)```", page))
        for name, text in self.files.items():
            if name.endswith(".ckpt"):
                self.assertTrue(text.endswith("\n\n"))
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def judge(self, **changed):
        for name in os.listdir(self.folder.name):
            os.remove(os.path.join(self.folder.name, name))
        for name, text in {**self.files, **changed}.items():
            if text is not None:
                with open(os.path.join(self.folder.name, name), "w", encoding="utf-8", newline="") as file:
                    file.write(text)
        return verify.verify(self.folder.name, self.key).code

    def test_good(self):
        self.assertEqual(len(self.files), 5)
        self.assertEqual(self.judge(), verify.GOOD)

    def test_removed(self):
        self.assertEqual(self.judge(**{"00000001.log": None}), verify.GOOD)
        self.assertEqual(self.judge(**{"00000001.log": None, "00000001.tree": None}), verify.TAMPERED)

    def test_folded(self):
        with open(PAGE, encoding="utf-8") as file:
            head = re.search(r"`removed`, that begins with `(\d+ \d+ \d+)`", file.read())[1]
        gone = {"00000001.log": None, "00000001.tree": None, "00000001.ckpt": None}
        block = head + "\n" + self.files["00000001.ckpt"] + self.files["00000001.tree"]
        self.assertEqual(self.judge(removed=block, **gone), verify.GOOD)
        for changed in (block[:-1], block + "\n", block.replace(" 1", " 2", 1), "2" + block[1:], ""):
            self.assertEqual(self.judge(removed=changed, **gone), verify.TAMPERED)

    def test_changed(self):
        text = self.files["00000001.log"]
        self.assertEqual(self.judge(**{"00000001.log": text.replace('"b"', '"x"')}), verify.TAMPERED)
        self.assertEqual(self.judge(**{"00000002.log": ""}), verify.TRUNCATED)
        self.assertEqual(self.judge(**{"00000002.log": self.files["00000002.log"] + "{"}), verify.TORN)
        self.assertEqual(self.judge(**{"00000001.ckpt": None, "00000002.ckpt": None}), verify.UNKNOWN)


if __name__ == "__main__":
    unittest.main()
