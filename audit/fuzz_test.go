package audit

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// FuzzCheckpoint: a note is what its checkpoint writes, to the byte, or it is none;
// and whatever a file holds, its notes with their empty lines are what it begins with.
func FuzzCheckpoint(f *testing.F) {
	s := newSigner(newOrigin())
	var m format.Mark
	for i := range 5 {
		m.Add([]byte{byte('a' + i)})
	}
	c := &format.Checkpoint{Origin: s.name, Size: 5, Root: m.Root(), Time: "2026-11-22T00:00:00.000000Z", Segment: 7, First: 3, Bytes: 10}
	plain, err := s.signNote(c)
	if err != nil {
		f.Fatal(err)
	}
	c.Next, c.Sealed, c.Edge, c.Torn, c.TornSum = s.public(), true, m.Edge.Bytes(), 9, strings.Repeat("0a", 32)
	seal, err := s.signNote(c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(plain, '\n'))
	f.Add(bytes.Join([][]byte{plain, seal, nil}, []byte("\n")))
	f.Add([]byte("\n\n\n\n"))
	f.Add(bytes.Repeat([]byte("x"), format.MaxNote+100))
	f.Fuzz(func(t *testing.T, content []byte) {
		r := format.NewNoteReader(bytes.NewReader(content))
		var read []byte
		for {
			n, err := r.Next()
			if err != nil {
				if err == io.EOF && !bytes.Equal(read, content) {
					t.Error("the end of a file that goes on")
				}
				return
			}
			read = append(append(read, n...), '\n')
			if !bytes.HasPrefix(content, read) || r.At != int64(len(read)) {
				t.Fatalf("the notes up to %d are not what the file begins with", r.At)
			}
			if c, err := format.ReadNote(n); err == nil && !bytes.HasPrefix(n, []byte(c.Text()+"\n— ")) {
				t.Errorf("%q was read from %q", c.Text(), n)
			}
			_, _, _ = verify.CheckpointsOf(content, s.public())
			_ = format.SignedBy(n, s.public())
		}
	})
}

// FuzzProof: what is no proof of its record is not taken for one, whatever its form.
func FuzzProof(f *testing.F) {
	s := newSigner(newOrigin())
	lines := []string{
		`{"v":1,"seq":0,"time":"2026-11-22T00:00:00.000000Z","kind":"a"}`,
		`{"v":1,"seq":1,"time":"2026-11-22T00:00:00.000000Z","kind":"b"}`,
		`{"v":1,"seq":2,"time":"2026-11-22T00:00:00.000000Z","kind":"c"}`,
	}
	var m format.Mark
	for _, line := range lines {
		m.Add([]byte(line))
	}
	n, err := s.signNote(&format.Checkpoint{Origin: s.name, Size: 3, Root: m.Root(), Time: "2026-11-22T00:00:00.000000Z", Segment: 1, Bytes: m.Bytes})
	if err != nil {
		f.Fatal(err)
	}
	p := verify.Proof{V: 1, Record: lines[2], Index: 2, Size: 3, Hashes: []string{}, Chain: []string{}, Checkpoint: string(n)}
	var two format.Mark
	two.Add([]byte(lines[0]))
	two.Add([]byte(lines[1]))
	p.Hashes = append(p.Hashes, two.Root().String())
	text, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	if code, err := p.Check(s.public()); code != verify.Good {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"v":1,"record":"","index":0,"size":1,"hashes":[],"checkpoint":"","chain":[null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := verify.ParseProof(bytes.NewReader(text))
		if err != nil {
			return
		}
		code, err := p.Check(s.public())
		if (code == verify.Good) != (err == nil) {
			t.Errorf("code %d, %v", code, err)
		}
		if code == verify.Good && (p.Index < 0 || p.Index > 2 || p.Record != lines[p.Index]) {
			t.Errorf("%q is proved", p.Record)
		}
	})
}
