#!/usr/bin/env python3
"""A second verifier of egressd's audit log, written from docs/reference/audit-format.md.

    verify.py DIR --key KEY [--checkpoint FILE]… [--index DIR] [--json]
    verify.py --proof FILE --key KEY [--json]
    verify.py --rows FILE [--key FILE] [--checkpoint FILE]… [--json]

It shares no code with egressd and needs nothing but Python 3.9. It reads, and
changes nothing. The exit codes are those of the page: 0 good, 1 tampered,
2 truncated or inconsistent with a checkpoint from elsewhere, 3 a torn tail and
nothing else, 4 unknown key or unsigned, 5 usage.
"""

import argparse
import base64
import binascii
import fcntl
import hashlib
import io
import json
import os
import re
import stat
import sys

GOOD, TAMPERED, TRUNCATED, TORN, UNKNOWN, USAGE = 0, 1, 2, 3, 4, 5

MAX_LINE = 8192
MAX_NOTE = 16384
MAX_NUMBER = 2**63 - 1
MAX_SIGNATURES = 100
DASH = "\u2014 ".encode()

NUMBER = rb"(?:0|[1-9][0-9]*)"
TIME = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
LINE = re.compile(rb'\{"v":1,"seq":(' + NUMBER + rb'),"time":"' + TIME + rb'","[\x20-\x7e]*\}')
FILE = re.compile(r"([0-9]{8,})\.(log|ckpt|tree)")
ORIGIN = re.compile(rb"egressd/[0-9a-f]{32}")


class Finding(Exception):
    """What a verification comes to, where it is not good."""

    def __init__(self, code, text, first=None, end=None):
        super().__init__(text)
        self.code, self.text, self.first, self.end = code, text, first, end


# --- Ed25519, RFC 8032, verification only ---------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def _decompress(text):
    y = int.from_bytes(text, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if v * x * x % P == -u % P:
        x = x * ROOT % P
    if v * x * x % P != u:
        return None
    if x == 0 and sign:
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def _add(p, q):
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _double(p):
    a, b = p[0] * p[0] % P, p[1] * p[1] % P
    c = 2 * p[2] * p[2] % P
    h = a + b
    e = h - (p[0] + p[1]) ** 2 % P
    g = a - b
    f = c + g
    return e * f % P, g * h % P, f * g % P, e * h % P


def _compress(p):
    inverse = pow(p[2], P - 2, P)
    x, y = p[0] * inverse % P, p[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


BASE = _decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def verifies(public, message, signature):
    """Whether signature is one of message by public: RFC 8032 §5.1.7, without the cofactor."""
    point = _decompress(public)
    scalar = int.from_bytes(signature[32:], "little")
    if point is None or scalar >= L:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    challenge = int.from_bytes(digest, "little") % L
    # [S]B + [k](-A), both at once, has to be R.
    minus = (P - point[0], point[1], 1, P - point[3])
    both = _add(BASE, minus)
    at = (0, 1, 1, 0)
    for bit in range(max(scalar.bit_length(), challenge.bit_length()) - 1, -1, -1):
        at = _double(at)
        one, other = scalar >> bit & 1, challenge >> bit & 1
        if one and other:
            at = _add(at, both)
        elif one:
            at = _add(at, BASE)
        elif other:
            at = _add(at, minus)
    return _compress(at) == signature[:32]


# --- forms ------------------------------------------------------------------------


def unbase64(text, length=None):
    """The bytes of canonical base64, or None."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if base64.b64encode(raw) != text or length is not None and len(raw) != length:
        return None
    return raw


def number(text):
    """The number that text is, or None."""
    if not re.fullmatch(NUMBER, text) or len(text) > len(str(MAX_NUMBER)):
        return None
    value = int(text)
    return value if value <= MAX_NUMBER else None


class Key:
    """A public key: name, four bytes of hash, and 32 bytes."""

    def __init__(self, text):
        match = re.fullmatch(rb"([^ +]+)\+([0-9a-f]{8})\+([^ ]+)", text)
        raw = unbase64(match[3], 33) if match else None
        if raw is None or raw[0] != 1:
            raise ValueError("not a public key")
        self.name, self.public = match[1], raw[1:]
        self.hash = hashlib.sha256(self.name + b"\n\x01" + self.public).digest()[:4]
        if self.hash.hex().encode() != match[2]:
            raise ValueError("not a public key: its hash is another one")
        if not ORIGIN.fullmatch(self.name):
            raise ValueError("not the key of an audit log: " + self.name.decode("utf-8", "replace"))

    def signed(self, note):
        """Whether the first signature that says it is by this key is."""
        for name, mark, signature in note.signatures:
            if name == self.name and mark == self.hash:
                return len(signature) == 64 and verifies(self.public, note.text, signature)
        return False

    def named(self, note):
        return any(name == self.name and mark == self.hash for name, mark, _ in note.signatures)


class Note:
    """A signed note with a checkpoint. ValueError where it is not one in form."""

    def __init__(self, raw, own):
        """raw ends with the line feed of its last signature; own: it is of a .ckpt file."""
        text, empty, rest = raw.partition(b"\n\n")
        if not empty or not rest.endswith(b"\n") or len(raw) > MAX_NOTE:
            raise ValueError("not a signed note")
        if re.search(rb"[\x00-\x09\x0b-\x1f]", raw):
            raise ValueError("a control character in a signed note")
        raw.decode("utf-8")
        self.raw, self.text = raw, text + b"\n"
        self.signatures = [self._signature(line) for line in rest[:-1].split(b"\n")]
        lines = text.split(b"\n")
        if len(lines) < 3:
            raise ValueError("not a checkpoint")
        self.origin, self.size, self.root = lines[0], number(lines[1]), unbase64(lines[2], 32)
        if not self.origin or self.size is None or self.root is None:
            raise ValueError("not a checkpoint")
        self.torn = self.next = self.seal = None
        if own:
            if len(self.signatures) != 1 or not ORIGIN.fullmatch(self.origin):
                raise ValueError("not a checkpoint of an audit log")
            self._extensions(lines[3:])
        elif len(self.signatures) > MAX_SIGNATURES:
            raise ValueError("too many signatures")

    @staticmethod
    def _signature(line):
        name, space, text = line[len(DASH) :].partition(b" ")
        raw = unbase64(text)
        if not line.startswith(DASH) or not space or raw is None or len(raw) < 5:
            raise ValueError("not a signature")
        if not name or b"+" in name or len(name.decode().split()) != 1 or name.decode().split()[0] != name.decode():
            raise ValueError("not the name of a key")
        return name, raw[:4], raw[4:]

    def _extensions(self, lines):
        def take(pattern):
            match = re.fullmatch(pattern, lines[0]) if lines else None
            if match:
                lines.pop(0)
            return match

        if not take(rb"time " + TIME):
            raise ValueError("a checkpoint without its time")
        place = take(rb"segment (%b) (%b) (%b)" % (NUMBER, NUMBER, NUMBER))
        if not place:
            raise ValueError("a checkpoint without its segment")
        self.segment, self.first, self.offset = (number(g) for g in place.groups())
        if None in (self.segment, self.first, self.offset) or self.segment == 0 or self.first > self.size:
            raise ValueError("a checkpoint in no segment")
        torn = take(rb"torn ([1-9][0-9]*) ([0-9a-f]{64})")
        following = take(rb"next (\S+)")
        seal = take(rb"seal(?: (\S+))?")
        if lines:
            raise ValueError("an unknown line in a checkpoint")
        if torn:
            self.torn = number(torn[1]), torn[2].decode()
            if self.torn[0] is None:
                raise ValueError("not a number of bytes")
        if following:
            self.next = Key(following[1])
            if self.next.name != self.origin:
                raise ValueError("the next key has another name")
        if seal:
            self.seal = unbase64(seal[1] or b"")
            if self.seal is None or len(self.seal) != 32 * bin(self.size).count("1") or (seal[1] is not None) != (self.size > 0):
                raise ValueError("a seal that is none")
        if self.seal is None and self.torn or self.seal is not None and not self.next:
            raise ValueError("a seal without its key, or the other way round")


# --- the tree ---------------------------------------------------------------------


class Tree:
    """The edge of an RFC 6962 tree."""

    def __init__(self):
        self.size, self.edge = 0, []

    def append(self, digest, level=0):
        self.size += 1 << level
        self.edge.append((level, digest))
        while len(self.edge) > 1 and self.edge[-1][0] == self.edge[-2][0]:
            level, right = self.edge.pop()
            left = self.edge.pop()[1]
            self.edge.append((level + 1, node(left, right)))

    def root(self):
        if not self.edge:
            return hashlib.sha256(b"").digest()
        root = self.edge[-1][1]
        for _, left in reversed(self.edge[:-1]):
            root = node(left, root)
        return root

    def hashes(self):
        return b"".join(digest for _, digest in self.edge)


def leaf(line):
    return hashlib.sha256(b"\x00" + line).digest()


def node(left, right):
    return hashlib.sha256(b"\x01" + left + right).digest()


def steps(start, end):
    """The levels of the complete subtrees that start to end consists of."""
    while start < end:
        level = 0
        while start % (2 << level) == 0 and start + (2 << level) <= end:
            level += 1
        yield level
        start += 1 << level


def well_formed(line):
    """The seq of a line without its line feed, or None."""
    match = LINE.fullmatch(line) if len(line) <= MAX_LINE else None
    return number(match[1]) if match else None


# --- the log ----------------------------------------------------------------------


class Segment:
    """The lines of one .log file, read once."""

    def __init__(self, path):
        self.file = open(path, "rb")
        self.offset = 0  # after the lines that were taken
        self.pending = None

    def peek(self):
        """The next line with its line feed, where it has one; at most a bit more than one may be long."""
        if self.pending is None:
            self.pending = self.file.readline(MAX_LINE + 2)
        return self.pending

    def take(self):
        self.offset += len(self.pending)
        self.pending = None

    def ended(self):
        """Whether a line feed follows."""
        at = self.file.tell()
        ended = self.pending.endswith(b"\n")
        while not ended:
            piece = self.file.read(1 << 16)
            if not piece:
                break
            ended = b"\n" in piece
        self.file.seek(at)
        return ended

    def rest(self):
        """All bytes that were not taken: their number and SHA-256, and whether a whole line, and a well-formed one, is among them."""
        digest, length, whole, good = hashlib.sha256(), 0, False, False
        start = True
        while True:
            piece = self.peek()
            self.pending = None
            if not piece:
                return length, digest.hexdigest(), whole, good
            digest.update(piece)
            length += len(piece)
            ended = piece.endswith(b"\n")
            whole = whole or ended
            if ended and start and well_formed(piece[:-1]) is not None:
                good = True
            start = ended

    def close(self):
        self.file.close()


class Removed:
    """What is left of the first segments, in blocks of one file."""

    HEAD = re.compile(rb"(%b) (%b) (%b)\n" % (NUMBER, NUMBER, NUMBER))

    def __init__(self, path):
        self.path, self.blocks, self.behind = path, [], False
        try:
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                raise Finding(USAGE, "removed is not a file")
            with open(path, "rb") as file:
                self.read(file)
        except FileNotFoundError:
            pass

    def read(self, file):
        at, size = 0, file.seek(0, os.SEEK_END)
        while True:
            file.seek(at)
            head = self.HEAD.match(file.read(64))
            numbers = [number(text) for text in head.groups()] if head else [None]
            if None in numbers or numbers[0] != len(self.blocks) + 1 or at + head.end() + numbers[1] + numbers[2] > size:
                self.behind = at < size
                return
            begin = at + head.end()
            at = begin + numbers[1] + numbers[2]
            self.blocks.append({"ckpt": (begin, numbers[1]), "tree": (begin + numbers[1], numbers[2])})

    def text(self, segment, kind):
        """What stands for a file, or FileNotFoundError."""
        if not 0 < segment <= len(self.blocks):
            raise FileNotFoundError(2, "neither a file nor a block", "%08d.%s" % (segment, kind))
        at, size = self.blocks[segment - 1][kind]
        with open(self.path, "rb") as file:
            file.seek(at)
            return file.read(size)


class Verifier:
    def __init__(self, folder, key, elsewhere):
        self.folder, self.key = folder, key
        self.first = None
        self.root_key, self.keys = key, []
        self.vouched = max((note.size for note in elsewhere), default=0)
        self.elsewhere = elsewhere
        self.wanted = {note.size for note in elsewhere}
        self.roots = {0: Tree().root()}
        self.tree = Tree()
        self.signed = 0  # size of the newest good note
        self.notes = 0
        self.torn = None
        self.short = None
        self.collect = None  # what to do with each line

    def run(self):
        self.list()
        self.locked = held(os.path.join(self.folder, "lock"))
        self.log()
        self.compare()
        if self.short:
            raise Finding(TRUNCATED, self.short)
        self.compare_roots()
        if self.torn and not self.locked:
            raise Finding(TORN, self.torn)

    def list(self):
        """Finds the files of the log."""
        self.files = {"log": set(), "ckpt": set(), "tree": set()}
        names = os.listdir(self.folder)
        self.first = self.first_log(names)
        for name in names:
            match = FILE.fullmatch(name)
            if match and int(match[1]) > 0 and "%08d" % int(match[1]) == match[1] and self.there(name):
                self.files[match[2]].add(int(match[1]))
        # Looked at after the others, which go only once they are in here.
        self.removed = Removed(os.path.join(self.folder, "removed"))
        for _ in range(2):
            if self.removed.behind and not self.under_way():  # it may be done by now
                self.removed = Removed(self.removed.path)
        self.blocks = len(self.removed.blocks)
        self.stray = self.removed.behind and not self.under_way()
        for segment in range(1, self.blocks + 1):
            self.files["ckpt"].add(segment)
            self.files["tree"].add(segment)
        if not self.files["log"] and not self.files["ckpt"]:
            raise Finding(USAGE, "%s holds no audit log" % self.folder)
        self.list_notes()
        # What is left of lines that were removed: of the first segments, and of no other.
        removed = 0
        while removed + 1 in self.files["tree"] & self.files["ckpt"] - self.files["log"]:
            removed += 1
        self.files["tree"] = set(range(1, removed + 1))
        self.last_lines = max(self.files["log"], default=0)
        self.last_notes = max(self.files["ckpt"], default=0)
        self.last = max(self.last_lines, self.last_notes)

    def under_way(self):
        """Whether the files are there of which a block is made that is not whole."""
        following = len(self.removed.blocks) + 1
        return all(self.there("%08d.%s" % (following, kind)) for kind in ("ckpt", "tree"))

    def list_notes(self):
        """Takes the last .ckpt for none where it has no whole note."""
        last = max(self.files["ckpt"], default=0)
        if last == 0:
            return
        text = self.left(last, "ckpt")
        if cut_note(text)[0] is None:
            self.files["ckpt"].remove(last)
            if text:
                self.torn = "%08d.ckpt holds %d bytes of an unfinished checkpoint" % (last, len(text))

    def overtaken(self):
        """Whether the log begins with another segment than when it was listed: what was listed and what is there can be too far apart."""
        return self.first != self.first_log(os.listdir(self.folder))

    @staticmethod
    def first_log(names):
        return min((int(match[1]) for match in map(FILE.fullmatch, names) if match and match[2] == "log"), default=0)

    def there(self, name):
        """Whether a file can be opened; what is no file ends the verification."""
        try:
            mode = os.stat(os.path.join(self.folder, name)).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise Finding(USAGE, "%s is not a file" % name)
        return True

    def left(self, segment, kind):
        """The content of a .ckpt or .tree, or of what stands for it."""
        try:
            with open(self.path(segment, kind), "rb") as file:
                return file.read()
        except FileNotFoundError:
            if segment > len(self.removed.blocks):  # it may have been moved there just now
                self.removed = Removed(self.removed.path)
            return self.removed.text(segment, kind)

    def path(self, segment, kind):
        return os.path.join(self.folder, "%08d.%s" % (segment, kind))

    def tampered(self, text, end=None):
        return Finding(TAMPERED, text, self.signed, end)

    # The notes of one segment.

    def read_notes(self, segment):
        """The notes of a .ckpt file, one after the other; a torn end is taken note of."""
        text = self.left(segment, "ckpt")
        raw, text = cut_note(text)
        while raw is not None:
            yield raw
            raw, text = cut_note(text)
        if text and segment != self.last_notes:
            raise self.tampered("%08d.ckpt ends in what is no checkpoint" % segment)
        self.behind = len(text)
        if text:
            self.torn = "%08d.ckpt ends in %d bytes of an unfinished checkpoint" % (segment, len(text))

    def check_note(self, raw, segment, first, size):
        """A note of a .ckpt file, in form, signed and in its place."""
        try:
            note = Note(raw, True)
        except ValueError as e:
            raise self.tampered("a checkpoint in %08d.ckpt: %s" % (segment, e))
        if self.notes == 0 and not self.key.named(note):
            raise Finding(UNKNOWN, "the log is not signed by %s" % self.key.name.decode())
        if note.origin != self.key.name or not self.key.signed(note):
            raise self.tampered("the signature of the checkpoint of size %d does not verify" % note.size, note.size)
        if note.segment != segment or note.first != first or note.size < size:
            raise self.tampered("the checkpoint of size %d is in the wrong place" % note.size, note.size)
        if self.notes == 0 and note.size != 0:
            raise self.tampered("the first checkpoint is not of size 0", note.size)
        self.notes += 1
        return note

    # The walk.

    def log(self):
        if not self.files["ckpt"]:
            raise Finding(UNKNOWN, "the log is not signed")
        sealed, first = True, 0
        self.look_behind(0)
        for segment in range(1, self.last_notes + 1):
            if segment not in self.files["ckpt"]:
                raise self.tampered("%08d.ckpt is missing" % segment)
            if segment not in self.files["log"] | self.files["tree"]:
                self.ends(segment, "segment %d is gone" % segment)
            sealed, first = self.signed_segment(segment, first)
            if not sealed and segment < self.last_notes:
                raise self.tampered("segment %d is not sealed, and later ones are signed" % segment)
            self.look_behind(segment)
        if self.short:
            return
        if sealed and self.last_lines <= self.last_notes:
            self.short = "segment %d, which the last seal speaks of, is gone" % (self.last_notes + 1)
            return
        for segment in range(self.last_notes + 1, self.last_lines + 1):
            self.unsigned_segment(segment)

    def look_behind(self, segment):
        """What stands behind the last block was left by a crash, or it is nothing of the log."""
        if self.stray and segment == self.blocks:
            raise self.tampered("what stands behind the blocks in removed is none")

    def ends(self, segment, text):
        """Lines are missing from a segment on: at the end of the log, or in the middle of it."""
        if self.last_lines > segment:
            raise self.tampered("lines of segment %d are missing, and later ones are there" % segment)
        self.short = self.short or text

    def signed_segment(self, segment, first):
        """Checks one segment that has notes, which begins with the line first; returns whether it is sealed, and where the next one begins."""
        self.roots_at()
        source = Segment(self.path(segment, "log")) if segment in self.files["log"] else None
        ranges = self.read_ranges(segment) if segment in self.files["tree"] else None
        size, sealed = first, False
        try:
            for raw in self.read_notes(segment):
                if sealed:
                    raise self.tampered("a checkpoint follows the seal of segment %d" % segment)
                note = self.check_note(raw, segment, first, size)
                size, sealed = note.size, note.seal is not None
                if self.short is None:
                    self.reach(note, source, ranges)
                if note.next:
                    self.keys.append(self.key)
                    self.key = note.next
            if sealed and self.behind:
                raise self.tampered("something follows the seal in %08d.ckpt" % segment)
            if ranges is not None and (not sealed or next(ranges, None) is not None):
                raise self.tampered("%08d.tree does not go with its checkpoints" % segment)
            if sealed and self.short is None:
                self.sealed(note, source)
            elif source and self.short is None:
                self.tail(segment, source)
            return sealed, size
        finally:
            if source:
                source.close()

    def reach(self, note, source, ranges):
        """Reads on to where note was signed, and compares."""
        while self.tree.size < note.size:
            if ranges is not None:
                self.range(note, ranges)
                continue
            due = self.tree.size
            line = source.peek() if source else b""
            if not line.endswith(b"\n") and (not source or not source.ended()):
                return self.ends(note.segment, "the log ends after %d records, and its checkpoint speaks of %d" % (due, note.size))
            if not line.endswith(b"\n") or well_formed(line[:-1]) != due:
                raise self.tampered("line %d is not what it was" % due, due + 1)
            self.line(source)
        if self.tree.root() != note.root or source and source.offset != note.offset:
            raise self.tampered("what the checkpoint of size %d was signed for is not what is there" % note.size, note.size)
        self.signed = note.size

    def line(self, source):
        text = source.peek()[:-1]
        source.take()
        if self.collect:
            self.collect(text)
        self.tree.append(leaf(text))
        self.roots_at()

    def roots_at(self):
        if self.tree.size in self.wanted:
            self.roots[self.tree.size] = self.tree.root()

    def read_ranges(self, segment):
        for line in io.BytesIO(self.left(segment, "tree")):
            fields = line[:-1].split(b" ")
            if not line.endswith(b"\n") or len(fields) < 3:
                raise self.tampered("%08d.tree is not what it was" % segment)
            hashes = [unbase64(f, 32) for f in fields[2:]]
            start, end = number(fields[0]), number(fields[1])
            if start is None or end is None or None in hashes:
                raise self.tampered("%08d.tree is not what it was" % segment)
            yield start, end, hashes

    def range(self, note, ranges):
        start, end, hashes = next(ranges, (None, None, None))
        if start != self.tree.size or end != note.size or len(hashes) != sum(1 for _ in steps(start, end)):
            raise self.tampered("the lines up to %d are gone, and so is what was kept of them" % note.size, note.size)
        for level, digest in zip(steps(start, end), hashes):
            self.tree.append(digest, level)
        self.roots_at()

    def sealed(self, note, source):
        """The end of a sealed segment."""
        if self.tree.hashes() != note.seal:
            raise self.tampered("the seal of segment %d is not for what is there" % note.segment, note.size)
        if not source:
            return
        length, digest, whole, _ = source.rest()
        if whole or (length, digest) != (note.torn or (0, hashlib.sha256().hexdigest())):
            raise self.tampered("something follows the end of segment %d" % note.segment, note.size + 1)

    def unsigned_segment(self, segment):
        """A segment behind the newest note: form and numbers alone."""
        if segment not in self.files["log"]:
            raise self.tampered("segment %d is missing" % segment)
        source = Segment(self.path(segment, "log"))
        try:
            self.tail(segment, source)
        finally:
            source.close()

    def tail(self, segment, source):
        """The lines of a segment that is not sealed, behind its newest note."""
        while True:
            line = source.peek()
            if not line:
                return
            if not line.endswith(b"\n") or well_formed(line[:-1]) != self.tree.size:
                break
            self.line(source)
        due, (length, _, whole, good) = self.tree.size, source.rest()
        if good if segment == self.last_lines else whole:
            raise self.tampered("line %d is not what it was" % due, due + 1)
        if segment == self.last_lines:
            self.torn = "%08d.log ends in %d bytes that are no record" % (segment, length)

    # Checkpoints from elsewhere.

    def compare(self):
        keys = self.keys + [self.key]
        by = [next((key for key in keys if note.origin == key.name and key.named(note)), None) for note in self.elsewhere]
        for note, key in zip(self.elsewhere, by):
            if key and not key.signed(note):
                raise self.tampered("the signature of the checkpoint given does not verify", note.size)
        # Of a log that was cut back beyond the end of an epoch, the later keys are not known.
        if any(key is None and (note.origin != self.root_key.name or note.size <= self.tree.size) for note, key in zip(self.elsewhere, by)):
            raise Finding(UNKNOWN, "the checkpoint given is of another log, or signed by no key of this one")

    def compare_roots(self):
        for note in self.elsewhere:
            if note.size > self.tree.size:
                raise Finding(TRUNCATED, "the checkpoint given is for %d records, and %d are there" % (note.size, self.tree.size))
            if self.roots.get(note.size) != note.root:
                raise Finding(TRUNCATED, "the first %d records are not those that the checkpoint given is for" % note.size)


def cut_note(text):
    """Takes one note with its empty line off text: (note, rest), or (None, text)."""
    first = text.find(b"\n\n")
    second = text.find(b"\n\n", first + 2) if first >= 0 else -1
    if second < 0:
        return None, text
    return text[: second + 1], text[second + 2 :]


def held(path):
    """Whether a writer holds the log's lock."""
    try:
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except OSError:
        pass
    return False


def read_elsewhere(path):
    """The notes of a file from elsewhere."""
    with open(path, "rb") as file:
        text = file.read().rstrip(b"\n")
    notes = []
    if text:
        text += b"\n\n"
    while text:
        raw, text = cut_note(text)
        if raw is None:
            raise Finding(USAGE, "%s is not a file of checkpoints" % path)
        try:
            notes.append(Note(raw, False))
        except ValueError as e:
            raise Finding(USAGE, "%s: %s" % (path, e))
    if not notes:
        raise Finding(USAGE, "%s holds no checkpoint" % path)
    return notes


class Report:
    """What a verification came to."""

    def __init__(self, code, text, **more):
        self.code, self.text, self.more = code, text, more


def verify(folder, key=None, checkpoints=(), index=None):
    """Verifies the log in folder. key is the text of the root key, checkpoints are paths."""
    walk = None
    try:
        if key is None:
            raise Finding(UNKNOWN, "no key is given")
        root, elsewhere = parse_key(key), []
        for path in checkpoints:
            elsewhere += read_elsewhere(path)
        if index is not None:
            of_index = [note for note in elsewhere if note.origin == root.name]
            elsewhere = [note for note in elsewhere if note.origin != root.name]
            root, more = find_run(folder, root, index, of_index)
            elsewhere += more
        elsewhere = [note for note in elsewhere if note.origin == root.name] or elsewhere
        for tries in (4, 3, 2, 1):
            walk = Verifier(folder, root, elsewhere)
            try:
                walk.run()
                break
            except (Finding, OSError):
                if tries == 1 or not walk.overtaken():
                    raise
        code, text = GOOD, "good"
    except Finding as found:
        code, text = found.code, found.text
        if found.first is not None:
            return Report(code, text, first=found.first, end=found.end)
    except OSError as e:
        return Report(USAGE, str(e))
    if walk is None:
        return Report(code, text)
    vouched = walk.vouched if code in (GOOD, TORN) else 0
    return Report(code, text, records=walk.tree.size, signed=walk.signed, unvouched=walk.tree.size - vouched)


def parse_key(text):
    try:
        return Key(text.strip().encode())
    except ValueError as e:
        raise Finding(USAGE, str(e))


def find_run(folder, root, index, elsewhere):
    """The root key of a run, and the checkpoint that the index has of it.

    The folder's name is the run's ID. The first record of each kind counts: one that
    was added later is not by the run.
    """
    run, begun, ended = os.path.basename(os.path.abspath(folder)), [], []

    def collect(line):
        if b'"kind":"run"' in line or b'"kind":"run-end"' in line:
            record = json.loads(line)
            if record.get("run") == run:
                {"run": begun, "run-end": ended}.get(record.get("kind"), []).append(record)

    walk = Verifier(index, root, elsewhere)
    walk.collect = collect
    try:
        walk.run()
    except Finding as found:
        if found.code != TORN:
            raise Finding(found.code, "the index of runs: " + found.text)
    if not begun:
        raise Finding(UNKNOWN, "the index of runs does not know %s" % run)
    key, notes = begun[0]["key"], []
    if ended:
        raw = ended[0]["checkpoint"].encode()
        notes.append(Note(raw[:-1] if raw.endswith(b"\n\n") else raw, False))
    return parse_key(key), notes


# --- proofs -----------------------------------------------------------------------

MEMBERS = ["v", "record", "index", "size", "hashes", "checkpoint", "chain"]


def check_proof(text, key):
    """Checks one proof without the log it is from."""
    try:
        root = parse_key(key) if key is not None else None
        if root is None:
            raise Finding(UNKNOWN, "no key is given")
        proof = parse_proof(text)
    except Finding as found:
        return Report(found.code, found.text)
    try:
        prove(proof, root)
    except Finding as found:
        return Report(found.code, found.text)
    except ValueError as e:
        return Report(TAMPERED, str(e))
    return Report(GOOD, "good", index=proof["index"], size=proof["size"])


def parse_proof(text):
    def once(pairs):
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a member stands twice")
        return dict(pairs)

    try:
        proof = json.loads(text, object_pairs_hook=once)
    except ValueError as e:
        raise Finding(USAGE, "not a proof: %s" % e)
    if not isinstance(proof, dict) or sorted(proof) != sorted(MEMBERS) or proof["v"] != 1 or isinstance(proof["v"], bool):
        raise Finding(USAGE, "not a proof")
    numbers, texts = (proof["index"], proof["size"]), [proof["record"], proof["checkpoint"]]
    for name in ("hashes", "chain"):
        if not isinstance(proof[name], list):
            raise Finding(USAGE, "not a proof: %s" % name)
        texts += proof[name]
    if not all(type(n) is int and n >= 0 for n in numbers) or not all(isinstance(t, str) for t in texts):
        raise Finding(USAGE, "not a proof")
    return proof


def prove(proof, root):
    def note(text):
        raw = text.encode()
        return Note(raw[:-1] if raw.endswith(b"\n\n") else raw, True)

    key, chain = root, [note(text) for text in proof["chain"]]
    checkpoint = note(proof["checkpoint"])
    if not root.named((chain + [checkpoint])[0]):
        raise Finding(UNKNOWN, "the proof is not signed by this key")
    for each in chain + [checkpoint]:
        if each.origin != root.name or not key.signed(each):
            raise ValueError("a signature does not verify")
        if each is not checkpoint and not each.next:
            raise ValueError("a checkpoint of the chain names no next key")
        key = each.next or key
    index, size, line = proof["index"], proof["size"], proof["record"].encode()
    if well_formed(line) != index or not index < size or size != checkpoint.size:
        raise ValueError("the record is not the one that is proved")
    path = [unbase64(h.encode(), 32) for h in proof["hashes"]]
    if None in path or climb(leaf(line), index, size, path) != checkpoint.root:
        raise ValueError("the path does not lead to the root")


def climb(at, index, size, path):
    """The root that an audit path leads to: RFC 9162 §2.1.3.2, or None."""
    last = size - 1
    for other in path:
        if last == 0:
            return None
        if index & 1 or index == last:
            at = node(other, at)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            at = node(at, other)
        index, last = index >> 1, last >> 1
    return at if last == 0 else None


# --- rows of a store --------------------------------------------------------------

BEGIN = b'{"v":1,"seq":'
ADDED = re.compile(rb'(?:,"count":1)?,"origin":"([^"]*)","id":"[^"]*"\}')


def stored(text):
    """The line that the log stores, and the origin of the log, of a line that left: the members behind it are taken away."""
    at = text.rfind(b',"origin":"')
    start = at - len(b',"count":1') if at >= 0 and text[:at].endswith(b',"count":1') else at
    match = ADDED.fullmatch(text, start) if at >= 0 else None
    return (text[:start] + b"}", match[1].decode()) if match else (text, "")


def part(of, name):
    inner = of.get(name)
    return inner if isinstance(inner, dict) else {}


def said(of, name):
    text = of.get(name)
    return text if isinstance(text, str) else ""


def origin_in(of, otherwise):
    for name in ("egressd", "unmapped"):
        if said(part(of, name), "origin"):
            return said(part(of, name), "origin")
    return otherwise


def row_of(o):
    """The record in one object of a store: its line and the origin of its log, or None."""
    o = part(o, "_source") or o
    named = origin_in(o, said(o, "egressd.origin"))
    texts = [said(o, "event.original"), said(part(o, "event"), "original")]
    texts += [said(o, name) for name in ("raw_data", "log.record.original", "_msg", "body", "message")]
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        if raw.startswith(BEGIN):
            line, origin = stored(raw)
            return line, origin or named
        if raw.startswith(b"{"):
            event = object_of(raw)
            for held in (said(part(event, "event"), "original"), said(event, "raw_data")):
                raw = held.encode("utf-8", "surrogatepass")
                if raw.startswith(BEGIN):
                    line, origin = stored(raw)
                    return line, origin or origin_in(event, named)
    return None


def no_number(text):
    raise ValueError(text)


def object_of(raw):
    """The object that JSON in raw is, or an empty one."""
    try:
        value = json.loads(raw.decode("utf-8", "replace"), parse_constant=no_number)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def rows_in(file):
    """Each record in the lines of a file, and None for each row that holds none."""
    for line in file:
        line = line.strip(b" \t\r\n\v\f")
        if not line:
            continue
        if not line.startswith(b"{"):
            at = line.find(BEGIN)
            line = line[at:] if at >= 0 else b""
        if line.startswith(BEGIN):
            yield stored(line)
            continue
        o = object_of(line)
        hits = part(o, "hits").get("hits")
        if isinstance(hits, list):
            found = [row_of(hit) if isinstance(hit, dict) else None for hit in hits]
            yield from [row for row in found if row]
            if not found or None in found:
                yield None
        else:
            yield row_of(o)


class Rows:
    """The rows of one log."""

    def __init__(self, origin):
        self.origin, self.rows, self.doubled, self.broken = origin, 0, 0, 0
        self.records, self.changed, self.cut = {}, set(), set()
        self.beats, self.claims, self.had = [], [], 0
        self.checkpoints = self.unknown = 0

    def add(self, line):
        self.rows += 1
        seq = well_formed(line)
        if seq is None or not valid_json(line):
            head = re.match(re.escape(BEGIN) + b"(" + NUMBER + rb"),", line)
            if head and number(head[1]) is not None:
                self.cut.add(number(head[1]))
            else:
                self.broken += 1
            return
        digest = leaf(line)
        if seq in self.records:
            if self.records[seq] == digest:
                self.doubled += 1
            else:
                self.changed.add((seq, seq))
            return
        self.records[seq] = digest
        if b'"kind":"heartbeat"' in line:
            self.beat(seq, object_of(line))

    def beat(self, seq, record):
        log = part(record, "log")
        if record.get("kind") != "heartbeat":
            return
        if self.origin and log.get("origin") != self.origin:
            self.changed.add((seq, seq))
            return
        self.beats.append(log)
        root = unbase64(said(log, "root").encode(), 32)
        if root is not None and isinstance(log.get("size"), int):
            self.claims.append((log["size"], root, seq))

    def given(self, keys, notes):
        """Takes the checkpoints of this log, those with a good signature alone if a key of it is known."""
        known = [key for key in keys if key.name.decode() == self.origin]
        signed = bool(known)
        for note in notes:
            if note.origin.decode("utf-8", "replace") != self.origin:
                continue
            if signed:
                if not any(key.named(note) and key.signed(note) for key in known):
                    self.unknown += 1
                    continue
                try:
                    following = Note(note.raw, True).next
                except ValueError:
                    following = None
                if following:
                    known.append(following)
            self.checkpoints += 1
            self.claims.append((note.size, note.root, -1))

    def verify(self):
        """What the rows come to, as the members of egressd log verify --rows --json."""
        self.cut -= set(self.records)
        end = max([self.had] + [size for size, _, _ in self.claims])
        missing, following = [], 0
        last = max(self.records, default=-1)
        for seq in sorted(self.records) + [max(last + 1, end)]:
            if seq > following:
                missing += self.without_cut(following, seq)
            following = seq + 1
        agreed, vouched = self.compare()
        code, verdict = GOOD, "good"
        if self.changed or self.broken:
            code, verdict = TAMPERED, "changed"
        elif missing or self.cut:
            code, verdict = TRUNCATED, "incomplete"
        elif self.unknown and not self.checkpoints:
            code, verdict = UNKNOWN, "unknown"
        return {
            "origin": self.origin, "code": code, "verdict": verdict, "rows": self.rows, "records": len(self.records), "last": last,
            "doubled": self.doubled, "changed": spans(self.changed), "missing": spans(missing), "cut": sorted(self.cut)[:1000],
            "broken": self.broken, "agreed": agreed, "unvouched": max(0, last + 1 - vouched),
            "checkpoints": self.checkpoints, "unknown_keys": self.unknown,
        }  # fmt: skip

    def without_cut(self, start, end):
        """The spans from start to before end without the records that are cut."""
        for seq in sorted(seq for seq in self.cut if start <= seq < end):
            if start < seq:
                yield start, seq - 1
            start = seq + 1
        if start < end:
            yield start, end - 1

    def compare(self):
        """Builds the tree up to the first record that is missing: how many agree with a state, and with a checkpoint."""
        tree, agreed, vouched = Tree(), 0, 0
        for size, root, by in sorted(self.claims, key=lambda claim: claim[0]):
            while tree.size < size:
                if tree.size not in self.records:
                    return agreed, vouched
                tree.append(self.records[tree.size])
            if tree.root() != root:
                to = max(agreed, size - 1, by)  # the heartbeat may be what was changed
                if not any(first >= agreed and last <= to for first, last in self.changed):
                    self.changed.add((agreed, to))
                return agreed, vouched
            agreed = size
            if by < 0:
                vouched = size
        return agreed, vouched


def spans(pairs):
    return [{"from": first, "to": last} for first, last in sorted(pairs)][:1000]


def valid_json(line):
    try:
        json.loads(line, parse_constant=no_number)
    except (ValueError, RecursionError):
        return False
    return True


def check_rows(path, key, checkpoints):
    """Judges the rows in a file. key is the text of root keys, or None."""
    try:
        keys = [parse_key(text) for text in (key or "").split()]
        notes = sorted((note for name in checkpoints for note in read_elsewhere(name)), key=lambda note: note.size)
    except Finding as found:
        return Report(found.code, found.text)
    logs, strange = {}, 0
    with open(path, "rb") as file:
        for found in rows_in(file):
            if found is None:
                strange += 1
            else:
                logs.setdefault(found[1], Rows(found[1])).add(found[0])
    adopt(logs, notes)
    if not logs:
        return Report(USAGE, "the rows hold no record of egressd")
    follows, followers = {}, {}
    for log in logs.values():
        log.given(keys, notes)
        for beat in log.beats:
            before = said(beat, "follows")
            if before:
                follows[log.origin] = before
                followers.setdefault(before, set()).add(log.origin)
            if before in logs and isinstance(beat.get("had"), int):
                logs[before].had = max(logs[before].had, beat["had"])
    reports = []
    for origin in sorted(logs):
        report = logs[origin].verify()
        if origin in follows:
            report["follows"] = follows[origin]
        after = sorted(followers.get(origin, set()) - {""})
        if after:
            report["followed_by"] = after[0]
        reports.append(report)
    code = next((code for code in (TAMPERED, TRUNCATED, UNKNOWN) if any(r["code"] == code for r in reports)), GOOD)
    return Report(code, "; ".join("%(origin)s: %(verdict)s" % r for r in reports), logs=reports, strange=strange)


def adopt(logs, notes):
    """Counts rows that name no log to the only one that their heartbeats, or else the checkpoints, name."""
    if "" not in logs:
        return
    names = {said(beat, "origin") for beat in logs[""].beats} or {note.origin.decode("utf-8", "replace") for note in notes}
    if len(names) == 1 and not names & set(logs):
        nameless, name = logs.pop(""), names.pop()
        nameless.origin = name
        logs[name] = nameless


# --- the command ------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, "%s: error: %s\n" % (self.prog, message))


def main(arguments=None):
    parser = Parser(description="Verify an audit log of egressd without egressd.")
    parser.add_argument("dir", nargs="?", metavar="DIR", help="folder of the log")
    parser.add_argument("--key", metavar="KEY", help="the log's root key, or a file that holds it")
    parser.add_argument("--checkpoint", metavar="FILE", action="append", default=[], help="a checkpoint that was kept elsewhere")
    parser.add_argument("--index", metavar="DIR", help="the index of runs: then KEY is its root key, and DIR the log of a run")
    parser.add_argument("--proof", metavar="FILE", help="check a proof for one record, instead of a log")
    parser.add_argument("--rows", metavar="FILE", help="check rows of a store, instead of a log; KEY may be a file of keys")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    o = parser.parse_args(arguments)
    if [o.dir, o.proof, o.rows].count(None) != 2:
        parser.error("a folder, a proof or rows are needed: verify.py DIR --key KEY")
    try:
        if o.key is not None and os.path.isfile(o.key):
            with open(o.key, encoding="utf-8") as file:
                o.key = file.read()
        if o.proof is not None:
            with open(o.proof, encoding="utf-8") as file:
                report = check_proof(file.read(), o.key)
        elif o.rows is not None:
            report = check_rows(o.rows, o.key, o.checkpoint)
        else:
            report = verify(o.dir, o.key, o.checkpoint, o.index)
    except (OSError, UnicodeDecodeError) as e:
        report = Report(USAGE, str(e))
    show(report, o.json)
    return report.code


def show(report, as_json):
    if as_json:
        print(json.dumps({"code": report.code, "says": report.text, **report.more}))
        return
    where = ""
    if report.more.get("first") is not None:
        where = " (records %d to %s)" % (report.more["first"], report.more["end"] if report.more["end"] is not None else "?")
    print(("good" if report.code == GOOD else report.text) + where)
    if "records" in report.more:
        print("%(records)d records, %(signed)d signed, the last %(unvouched)d vouched for by nothing outside" % report.more)


if __name__ == "__main__":
    sys.exit(main())
