package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestEveryRecordIsProved(t *testing.T) {
	s := signed(t, Options{})
	all := lines(t, s.dir)
	for seq, line := range all {
		p, err := Prove(s.dir, s.key, int64(seq))
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseProof(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if code, err := again.Check(s.key); code != Good || again.Record != line {
			t.Errorf("record %d: %d, %v", seq, code, err)
		}
	}
	for _, seq := range []int64{-1, 30} {
		if _, err := Prove(s.dir, s.key, seq); err == nil {
			t.Errorf("record %d is proved", seq)
		}
	}
}

func TestWhatIsNotAProof(t *testing.T) {
	s, other := signed(t, Options{}), signed(t, Options{})
	for name, row := range map[string]struct {
		change func(*Proof)
		want   int
	}{
		"nothing":                  {func(*Proof) {}, Good},
		"another record":           {func(p *Proof) { p.Record = strings.Replace(p.Record, "record20", "record2x", 1) }, Tampered},
		"another number":           {func(p *Proof) { p.Index-- }, Tampered},
		"another size":             {func(p *Proof) { p.Size++ }, Tampered},
		"a hash too few":           {func(p *Proof) { p.Hashes = p.Hashes[1:] }, Tampered},
		"a hash too many":          {func(p *Proof) { p.Hashes = append(p.Hashes, p.Hashes[0]) }, Tampered},
		"hashes in another order":  {func(p *Proof) { p.Hashes[0], p.Hashes[1] = p.Hashes[1], p.Hashes[0] }, Tampered},
		"no chain":                 {func(p *Proof) { p.Chain = nil }, Unknown},
		"a link is missing":        {func(p *Proof) { p.Chain = p.Chain[:len(p.Chain)-1] }, Tampered},
		"a chain of another order": {func(p *Proof) { p.Chain[1], p.Chain[2] = p.Chain[2], p.Chain[1] }, Tampered},
		"the chain of another log": {func(p *Proof) { q, _ := Prove(other.dir, other.key, 20); p.Chain = q.Chain }, Unknown},
		"a link that names no key": {func(p *Proof) { p.Chain = append(p.Chain, p.Checkpoint) }, Tampered},
		"another checkpoint":       {func(p *Proof) { p.Checkpoint = p.Chain[len(p.Chain)-1] }, Tampered},
	} {
		p, err := Prove(s.dir, s.key, 20)
		if err != nil {
			t.Fatal(err)
		}
		row.change(p)
		if code, err := p.Check(s.key); code != row.want || (err == nil) != (code == Good) {
			t.Errorf("%s: %d, %v; want %d", name, code, err, row.want)
		}
	}
	p, err := Prove(s.dir, s.key, 3)
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := p.Check(other.key); code != Unknown {
		t.Errorf("with the key of another log: %d", code)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for old, bad := range map[string]string{`"v":1`: `"v":2`, `{"v"`: `{"v":1,"v"`, `"size"`: `"Size"`, `"index":3,`: ``, `"index":3`: `"index":null`, `}`: `,"x":1}`, `"hashes":[`: `"hashes":[null,`} {
		i := bytes.LastIndex(text, []byte(old))
		changed := append(append(bytes.Clone(text[:i]), bad...), text[i+len(old):]...)
		q, err := ParseProof(bytes.NewReader(changed))
		if err == nil {
			if code, _ := q.Check(s.key); code == Good {
				t.Errorf("%s instead of %s is a proof", bad, old)
			}
		}
	}
	if _, err := ParseProof(bytes.NewReader(append(text, text...))); err == nil {
		t.Error("two proofs are one")
	}
}

func TestARecordThatIsNotSignedYet(t *testing.T) {
	s := signed(t, Options{})
	l := open(t, s.dir, Options{})
	wait(t, l, appendTo(t, l, named("new")))
	if _, err := Prove(s.dir, s.key, 30); !errors.Is(err, ErrNotSigned) {
		t.Errorf("%v", err)
	}
	if _, err := l.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	if _, err := Prove(s.dir, s.key, 30); err != nil {
		t.Error(err)
	}
}
