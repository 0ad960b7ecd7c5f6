package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// A testWitness cosigns whatever it is told to.
type testWitness struct {
	name string
	key  ed25519.PrivateKey
}

func newTestWitness(name string) *testWitness {
	return &testWitness{name, newSigner("").key}
}

func (w *testWitness) id() []byte {
	sum := sha256.Sum256(append([]byte(w.name+"\n\x04"), w.key.Public().(ed25519.PublicKey)...))
	return sum[:4]
}

func (w *testWitness) public() string {
	return fmt.Sprintf("%s+%x+%s", w.name, w.id(), base64.StdEncoding.EncodeToString(append([]byte{4}, w.key.Public().(ed25519.PublicKey)...)))
}

// line is a cosignature of the text of a note.
func (w *testWitness) line(note string, at time.Time) string {
	text, _, _ := strings.Cut(note, "\n\n")
	message := fmt.Sprintf("cosignature/v1\ntime %d\n%s\n", at.Unix(), text)
	b := binary.BigEndian.AppendUint64(w.id(), uint64(at.Unix()))
	b = append(b, ed25519.Sign(w.key, []byte(message))...)
	return "— " + w.name + " " + base64.StdEncoding.EncodeToString(b) + "\n"
}

// TestBothVerifiersKnowCosignatures has both judge logs with what witnesses have, and
// have not, cosigned.
func TestBothVerifiersKnowCosignatures(t *testing.T) {
	s := makeSpecimen(t, "clean", 100, Options{SegmentBytes: 4000})
	j := newJudge(t)
	if err := os.Mkdir(filepath.Join(j.dir, "witnesses"), 0o700); err != nil {
		t.Fatal(err)
	}
	w, other := newTestWitness("witness.test/ä"), newTestWitness("other.test")
	now := time.Now()
	newest, early := s.anchors[len(s.anchors)-1], ""
	for _, text := range s.anchors {
		if !strings.Contains(text, "\nnext ") && !strings.Contains(text, "\n0\n") {
			early = text
			break
		}
	}
	cut := cutToNote(s, early)
	with := func(files map[string][]byte, notes ...string) map[string][]byte {
		files = maps.Clone(files)
		for i, n := range notes {
			files[fmt.Sprintf("witnesses/%d.note", i)] = []byte(n)
		}
		return files
	}
	cosigned := newest + w.line(newest, now)
	earlier := early + w.line(early, now.Add(-3*time.Hour))
	flipped := []byte(cosigned)
	if at := len(flipped) - 9; flipped[at] == 'A' { // in the base64 of the signature
		flipped[at] = 'B'
	} else {
		flipped[at] = 'A'
	}
	foreign := strings.Replace(newest, "egressd/", "egressd/0", 1)
	forged := resigned(newest, newSigner(strings.SplitN(s.key, "+", 2)[0]))
	ws := []string{w.public()}
	rows := []*mutation{
		{name: "the newest is cosigned", files: with(s.files, cosigned), by: ws, want: verify.Good},
		{name: "lately", files: with(s.files, cosigned), by: ws, within: time.Hour, want: verify.Good},
		{name: "by a clock that is ahead", files: with(s.files, newest+w.line(newest, now.Add(time.Hour))), by: ws, within: time.Hour, want: verify.Good},
		{name: "it was given", files: s.files, given: cosigned, by: ws, want: verify.Good},
		{name: "it was given and is there", files: with(s.files, earlier), given: cosigned, by: ws, within: time.Hour, want: verify.Good},
		{name: "nobody asks", files: with(s.files, "x"), want: verify.Good},
		{name: "nothing is cosigned", files: s.files, by: ws, want: verify.Unknown},
		{name: "another has", files: with(s.files, cosigned), by: []string{other.public()}, want: verify.Unknown},
		{name: "one of two has", files: with(s.files, cosigned), by: []string{w.public(), other.public()}, want: verify.Unknown},
		{name: "two of two have", files: with(s.files, cosigned, earlier+other.line(early, now)), by: []string{w.public(), other.public()}, want: verify.Good},
		{name: "the same name with another key", files: with(s.files, cosigned), by: []string{newTestWitness(w.name).public()}, want: verify.Unknown},
		{name: "the cosignature is changed", files: with(s.files, string(flipped)), by: ws, want: verify.Tampered},
		{name: "it is of another note", files: with(s.files, newest+w.line(early, now)), by: ws, want: verify.Tampered},
		{name: "the first of two is wrong", files: with(s.files, newest+w.line(early, now)+w.line(newest, now)), by: ws, want: verify.Tampered},
		{name: "it has no time", files: with(s.files, newest+w.line(newest, time.Unix(0, 0))), by: ws, want: verify.Tampered},
		{name: "it is too short", files: with(s.files, newest+"— "+w.name+" "+base64.StdEncoding.EncodeToString(append(w.id(), 1))+"\n"), by: ws, want: verify.Tampered},
		{name: "the log has not signed it", files: with(s.files, forged+w.line(forged, now)), by: ws, want: verify.Unknown},
		{name: "it is of another log", files: with(s.files, foreign+w.line(foreign, now)), by: ws, want: verify.Unknown},
		{name: "it is old", files: with(s.files, earlier), by: ws, within: time.Hour, want: verify.Truncated},
		{name: "it is old and nobody minds", files: with(s.files, earlier), by: ws, want: verify.Good},
		{name: "the log is cut", files: with(cut, cosigned), by: ws, want: verify.Truncated},
		{name: "the log is cut, and what was cosigned", files: with(cut, earlier), by: ws, want: verify.Good},
		{name: "the log is cut, and what was cosigned, lately", files: with(cut, earlier), by: ws, within: time.Hour, want: verify.Truncated},
		{name: "a time without a witness", files: s.files, within: -1, want: verify.Good},
		{name: "a file that holds no note", files: with(s.files, "x"), by: ws, want: 5},
		{name: "a file that holds nothing", files: with(s.files, cosigned, ""), by: ws, want: 5},
		{name: "no key", files: s.files, by: []string{"x"}, want: 5},
		{name: "a key for signatures", files: s.files, by: []string{newSigner("a.test").public()}, want: 5},
		{name: "a key with another hash", files: s.files, by: []string{strings.Replace(w.public(), "+", "+0", 1)}, want: 5},
		{name: "a key with a wrong letter", files: s.files, by: []string{w.public()[:len(w.public())-3] + "AA="}, want: 5},
		{name: "a record is changed", files: with(replaced(s, "record7", "record8"), cosigned), by: ws, want: verify.Tampered},
	}
	for _, m := range rows {
		m.key, m.seq, j.report = s.key, -1, nil
		j.judge(t, m)
	}
	if m := rows[0]; !t.Failed() {
		j.judge(t, m)
		if r := j.report; r.Unvouched != 0 || len(r.Witnesses) != 1 || r.Witnesses[0].Size != r.Records || r.Witnesses[0].Time.Unix() != now.Unix() {
			t.Errorf("%+v", r)
		}
		two := rows[9]
		j.judge(t, two)
		size, _ := sizeOfNote(early)
		if r := j.report; r.Unvouched != r.Records-size {
			t.Errorf("nobody vouches for %d of %d records, where only one of two witnesses does so beyond %d", r.Unvouched, r.Records, size)
		}
	}
}

func sizeOfNote(text string) (int64, error) {
	_, size, err := verify.CheckpointSize([]byte(text))
	return size, err
}

// cutToNote is the log as it was when a note was its newest. The note is of segment 1.
func cutToNote(s *specimen, text string) map[string][]byte {
	name, notes := fileName(1, ".ckpt"), s.files[fileName(1, ".ckpt")]
	end := bytes.Index(notes, []byte(text)) + len(text) + 1
	c, _ := format.ReadNote([]byte(text))
	return map[string][]byte{name: notes[:end], fileName(1, ".log"): s.files[fileName(1, ".log")][:c.Bytes]}
}

func replaced(s *specimen, old, with string) map[string][]byte {
	files := maps.Clone(s.files)
	name := fileName(1, ".log")
	files[name] = bytes.Replace(files[name], []byte(old+`"`), []byte(with+`"`), 1)
	return files
}

// resigned is a note with the signature of another key.
func resigned(text string, s *signer) string {
	c, err := format.ReadNote([]byte(text))
	if err != nil {
		panic(err)
	}
	n, err := s.signNote(c)
	if err != nil {
		panic(err)
	}
	return string(n)
}

// TestCosigned: of what a witness answers, its own signature is taken, and verified.
func TestCosigned(t *testing.T) {
	s := makeSpecimen(t, "clean", 8, Options{})
	w, other := newTestWitness("a.test"), newTestWitness("b.test")
	k, err := verify.ParseWitnessKey(w.public())
	if err != nil {
		t.Fatal(err)
	}
	n, now := s.anchors[len(s.anchors)-1], time.Now()
	mine, others := w.line(n, now), other.line(n, now)
	for name, row := range map[string]struct {
		answer string
		good   bool
	}{
		"alone":                 {mine, true},
		"among others":          {others + mine, true},
		"with noise":            {"noise\n" + mine, true},
		"without its end":       {strings.TrimSuffix(mine, "\n"), true},
		"none":                  {"", false},
		"of another":            {others, false},
		"of another note":       {w.line(s.anchors[0], now), false},
		"wrong, then right":     {w.line(s.anchors[0], now) + mine, false},
		"with another name":     {strings.Replace(mine, "a.test", "b.test", 1), false},
		"without a signature":   {"— a.test \n", false},
		"a signature too short": {"— a.test " + base64.StdEncoding.EncodeToString(w.id()) + "\n", false},
	} {
		whole, c, err := k.Cosigned([]byte(n), []byte(row.answer))
		if (err == nil) != row.good {
			t.Errorf("%s: %v", name, err)
		}
		if row.good && (string(whole) != n+mine || c.Time.Unix() != now.Unix() || c.Size != 8) {
			t.Errorf("%s: %q, %+v", name, whole, c)
		}
	}
}
