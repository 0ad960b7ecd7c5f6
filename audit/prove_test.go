package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/verify"
)

func TestEveryRecordIsProved(t *testing.T) {
	s := signed(t, Options{})
	all := lines(t, s.dir)
	for seq, line := range all {
		p, err := verify.Prove(s.dir, s.key, int64(seq))
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := verify.ParseProof(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if code, err := again.Check(s.key); code != verify.Good || again.Record != line {
			t.Errorf("record %d: %d, %v", seq, code, err)
		}
	}
	for _, seq := range []int64{-1, 30} {
		if _, err := verify.Prove(s.dir, s.key, seq); err == nil {
			t.Errorf("record %d is proved", seq)
		}
	}
}

func TestWhatIsNotAProof(t *testing.T) {
	s, other := signed(t, Options{}), signed(t, Options{})
	for name, row := range map[string]struct {
		change func(*verify.Proof)
		want   int
	}{
		"nothing":                  {func(*verify.Proof) {}, verify.Good},
		"another record":           {func(p *verify.Proof) { p.Record = strings.Replace(p.Record, "record20", "record2x", 1) }, verify.Tampered},
		"another number":           {func(p *verify.Proof) { p.Index-- }, verify.Tampered},
		"another size":             {func(p *verify.Proof) { p.Size++ }, verify.Tampered},
		"a hash too few":           {func(p *verify.Proof) { p.Hashes = p.Hashes[1:] }, verify.Tampered},
		"a hash too many":          {func(p *verify.Proof) { p.Hashes = append(p.Hashes, p.Hashes[0]) }, verify.Tampered},
		"hashes in another order":  {func(p *verify.Proof) { p.Hashes[0], p.Hashes[1] = p.Hashes[1], p.Hashes[0] }, verify.Tampered},
		"no chain":                 {func(p *verify.Proof) { p.Chain = nil }, verify.Unknown},
		"a link is missing":        {func(p *verify.Proof) { p.Chain = p.Chain[:len(p.Chain)-1] }, verify.Tampered},
		"a chain of another order": {func(p *verify.Proof) { p.Chain[1], p.Chain[2] = p.Chain[2], p.Chain[1] }, verify.Tampered},
		"the chain of another log": {func(p *verify.Proof) { q, _ := verify.Prove(other.dir, other.key, 20); p.Chain = q.Chain }, verify.Unknown},
		"a link that names no key": {func(p *verify.Proof) { p.Chain = append(p.Chain, p.Checkpoint) }, verify.Tampered},
		"another checkpoint":       {func(p *verify.Proof) { p.Checkpoint = p.Chain[len(p.Chain)-1] }, verify.Tampered},
	} {
		p, err := verify.Prove(s.dir, s.key, 20)
		if err != nil {
			t.Fatal(err)
		}
		row.change(p)
		if code, err := p.Check(s.key); code != row.want || (err == nil) != (code == verify.Good) {
			t.Errorf("%s: %d, %v; want %d", name, code, err, row.want)
		}
	}
	p, err := verify.Prove(s.dir, s.key, 3)
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := p.Check(other.key); code != verify.Unknown {
		t.Errorf("with the key of another log: %d", code)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for old, bad := range map[string]string{`"v":1`: `"v":2`, `{"v"`: `{"v":1,"v"`, `"size"`: `"Size"`, `"index":3,`: ``, `"index":3`: `"index":null`, `}`: `,"x":1}`, `"hashes":[`: `"hashes":[null,`} {
		i := bytes.LastIndex(text, []byte(old))
		changed := append(append(bytes.Clone(text[:i]), bad...), text[i+len(old):]...)
		q, err := verify.ParseProof(bytes.NewReader(changed))
		if err == nil {
			if code, _ := q.Check(s.key); code == verify.Good {
				t.Errorf("%s instead of %s is a proof", bad, old)
			}
		}
	}
	if _, err := verify.ParseProof(bytes.NewReader(append(text, text...))); err == nil {
		t.Error("two proofs are one")
	}
}

func TestARecordThatIsNotSignedYet(t *testing.T) {
	s := signed(t, Options{})
	l := open(t, s.dir, Options{})
	wait(t, l, appendTo(t, l, named("new")))
	if _, err := verify.Prove(s.dir, s.key, 30); !errors.Is(err, verify.ErrNotSigned) {
		t.Errorf("%v", err)
	}
	if _, err := l.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Prove(s.dir, s.key, 30); err != nil {
		t.Error(err)
	}
}
