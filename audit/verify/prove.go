package verify

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
)

// A Proof shows without the log that a record is in it: see docs/reference/audit-format.md.
type Proof struct {
	V          int      `json:"v"`
	Record     string   `json:"record"` // the line as it is stored
	Index      int64    `json:"index"`
	Size       int64    `json:"size"` // of the tree
	Hashes     []string `json:"hashes"`
	Checkpoint string   `json:"checkpoint"`
	Chain      []string `json:"chain"`
}

// ErrNotSigned is wrapped by the error for a record without a checkpoint.
var ErrNotSigned = errors.New("there is no checkpoint of the record yet")

// A NotGoodError says why a log from which something was to be proved proves nothing.
type NotGoodError struct{ *Report }

func (e *NotGoodError) Error() string { return "the audit log is not good: " + e.Problem }

var errProved = errors.New("all that was wanted was read")

// Prove returns the proof of the record numbered seq, by the newest checkpoint of the
// log in dir. It verifies the log first: an error is a [*NotGoodError] where that is
// not good; one that cannot be read, or has no such record, is as for [Log].
// It reads the log twice.
func Prove(dir, key string, seq int64) (*Proof, error) {
	report, err := Log(dir, key, nil)
	switch {
	case err != nil:
		return nil, err
	case report.Code != Good && report.Code != TornTail:
		return nil, &NotGoodError{report}
	case seq < 0 || seq >= report.Records:
		return nil, fmt.Errorf("there is no record %d in a log of %d", seq, report.Records)
	}
	size := report.Records - report.Unsigned
	if seq >= size {
		return nil, fmt.Errorf("record %d: %w", seq, ErrNotSigned)
	}
	p := &Proof{V: 1, Index: seq, Size: size, Hashes: []string{}, Chain: []string{}}
	if err := p.collect(newWalker(dir, key)); err != nil {
		return nil, err
	}
	if p.Record == "" {
		return nil, fmt.Errorf("record %d was removed: only its hash is left", seq)
	}
	if _, err := p.Check(key); err != nil { // the log was changed in between
		return nil, fmt.Errorf("prove record %d: %w", seq, err)
	}
	return p, nil
}

// collect reads the log for what the proof needs.
func (p *Proof) collect(w *walker) error {
	nodes := make(map[int64]tlog.Hash)
	var order []int64
	_, err := tlog.ProveRecord(p.Size, p.Index, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		order = slices.Clone(indexes)
		return make([]tlog.Hash, len(indexes)), nil
	}))
	if err != nil {
		return err
	}
	w.seen = func(level int, index int64, h tlog.Hash) {
		if at := tlog.StoredHashIndex(level, index); slices.Contains(order, at) {
			nodes[at] = h
		}
	}
	w.found = func(seq int64, line []byte) {
		if seq == p.Index {
			p.Record = string(line)
		}
	}
	w.noted = func(n []byte, c *format.Checkpoint) error {
		if c.Size == p.Size {
			p.Checkpoint = string(n)
			return errProved
		}
		if c.Next != "" {
			p.Chain = append(p.Chain, string(n))
		}
		return nil
	}
	if err := w.list(); err != nil {
		return err
	}
	if err := w.walk(); err != errProved {
		return errors.Join(errors.New("the log was changed while it was read"), err)
	}
	path, err := tlog.ProveRecord(p.Size, p.Index, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		all := make([]tlog.Hash, len(indexes))
		for i, at := range indexes {
			all[i] = nodes[at]
		}
		return all, nil
	}))
	for _, h := range path {
		p.Hashes = append(p.Hashes, base64.StdEncoding.EncodeToString(h[:]))
	}
	return err
}

const maxProof = 64 << 20

// ParseProof reads the text of a proof. It accepts one object in which no member is
// missing, unknown or twice.
func ParseProof(r io.Reader) (*Proof, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxProof+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxProof {
		return nil, fmt.Errorf("it is larger than %d bytes", maxProof)
	}
	if err := membersOnce(text, "v", "record", "index", "size", "hashes", "checkpoint", "chain"); err != nil {
		return nil, err
	}
	var p Proof
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, err
	}
	if p.V != 1 || p.Hashes == nil || p.Chain == nil || checkProofNumbers(&p) != nil {
		return nil, errors.New("it is not a proof of version 1")
	}
	return &p, nil
}

func checkProofNumbers(p *Proof) error {
	if p.Index < 0 || p.Size <= p.Index || len(p.Hashes) > 64 {
		return errors.New("the record is not in the tree")
	}
	return nil
}

// membersOnce checks that text is one JSON object with exactly these members, each
// once: what encoding/json would let pass.
func membersOnce(text []byte, names ...string) error {
	bad := errors.New("it is not an object with the members " + strings.Join(names, ", "))
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		i := slices.Index(names, name)
		if err != nil || !ok || i < 0 {
			return bad
		}
		names = slices.Delete(slices.Clone(names), i, i+1)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil || string(value) == "null" {
			return bad
		}
	}
	if _, err := d.Token(); err != nil || len(names) > 0 {
		return bad
	}
	if _, err := d.Token(); err != io.EOF {
		return bad
	}
	return nil
}

// Check checks the proof by the root key alone. It returns Good, Tampered where it
// does not prove its record, and Unknown where another key begins it; with the
// latter two an error that says why.
func (p *Proof) Check(key string) (code int, err error) {
	if err := format.CheckKey(key); err != nil {
		return Unknown, err
	}
	due := key
	for i, text := range p.Chain {
		c, err := p.link(text, due)
		if err != nil {
			return p.notSigned(i, err)
		}
		if c.Next == "" {
			return Tampered, fmt.Errorf("link %d of the chain names no next key", i)
		}
		due = c.Next
	}
	c, err := p.link(p.Checkpoint, due)
	if err != nil {
		return p.notSigned(len(p.Chain), err)
	}
	if err := p.lead(c); err != nil {
		return Tampered, err
	}
	return Good, nil
}

// link checks one note of the chain.
func (p *Proof) link(text, key string) (*format.Checkpoint, error) {
	n := []byte(text)
	c, err := format.ReadNote(n)
	if err != nil {
		return nil, err
	}
	if !format.SignedBy(n, key) {
		return nil, format.ErrUnknownKey
	}
	if !c.IsOf(key) {
		return nil, format.ErrNote
	}
	return c, format.VerifyNote(n, key)
}

func (p *Proof) notSigned(i int, err error) (int, error) {
	if i == 0 && err == format.ErrUnknownKey {
		return Unknown, errors.New("the proof begins with another key")
	}
	return Tampered, fmt.Errorf("checkpoint %d of the chain: %w", i, err)
}

// lead checks that the record's path leads to the root of the checkpoint.
func (p *Proof) lead(c *format.Checkpoint) error {
	if err := checkProofNumbers(p); err != nil {
		return err
	}
	if c.Size != p.Size {
		return fmt.Errorf("the checkpoint is of %d records, not %d", c.Size, p.Size)
	}
	seq, err := format.CheckLine([]byte(p.Record))
	if err != nil {
		return err
	}
	if seq != p.Index {
		return fmt.Errorf("the record is numbered %d, not %d", seq, p.Index)
	}
	var path tlog.RecordProof
	for _, text := range p.Hashes {
		h, err := format.Decode64(text)
		if err != nil || len(h) != tlog.HashSize {
			return errors.New("a hash is malformed")
		}
		path = append(path, tlog.Hash(h))
	}
	if err := tlog.CheckRecord(path, p.Size, c.Root, p.Index, tlog.RecordHash([]byte(p.Record))); err != nil {
		return errors.New("the record is not in the tree of the checkpoint")
	}
	return nil
}
