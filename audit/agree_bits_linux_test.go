package audit

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// everyVariable has both verifiers judge every bit and every truncation of logs of 200
// records, and not some hundred of them. Its value is a part of that work: 0/1 is all of
// it, 5/64 the sixth of 64 parts. All of one log takes a quarter of an hour or more.
const everyVariable = "EGRESSD_AUDIT_EVERY"

// A change is one bit that is flipped, or a place where something is cut off: of a
// file, of the key, or of a checkpoint from elsewhere.
type change struct {
	specimen *specimen
	of       string // the name of a file, or theKey or theGiven
	at       int
	bit      int // or cut
}

const (
	theKey   = "key"
	theGiven = "checkpoint"
	cut      = 8
)

// made carries a change out on a copy, and says which code is due.
func (c *change) made() *mutation {
	s := c.specimen.copy(c.specimen.name)
	m := c.madeOf(s)
	m.name = fmt.Sprintf("%s: %s at %d, bit %d: %s", s.name, c.of, c.at, c.bit, m.name)
	return m
}

func (c *change) madeOf(s *specimen) *mutation {
	kind := c.of[strings.LastIndexByte(c.of, '.')+1:]
	switch {
	case kind == theKey:
		m := s.changed(5, -1, "the key")
		if m.key = string(c.bytes([]byte(s.key))); m.key == "" {
			m.want = verify.Unknown
		}
		return m
	case kind == theGiven:
		newest := last(s.anchors)
		m := s.changed(0, -1, "the newest checkpoint")
		m.given = string(c.bytes([]byte(newest)))
		m.want = s.givenCode(newest, m.given)
		return m
	case kind == "log" && c.bit == cut:
		return s.cutLogAt(c.of, c.at)
	case kind == "log":
		return s.flipLineAt(c.of, c.at, c.bit)
	case kind == "ckpt" && c.bit == cut:
		return s.cutNotesAt(c.of, c.at)
	case kind == "ckpt":
		return s.flipNoteAt(c.of, c.at, c.bit)
	case kind == "tree" && c.bit == cut:
		return s.cutTreeAt(c.of, c.at)
	case kind == "tree":
		return s.flipTreeAt(c.of, c.at, c.bit)
	}
	s.files[c.of] = c.bytes(s.files[c.of])
	return s.changed(s.code, -1, "no part of the log")
}

func (c *change) bytes(of []byte) []byte {
	if c.bit == cut {
		return of[:c.at]
	}
	of[c.at] ^= 1 << c.bit
	return of
}

// givenForm is a file of one checkpoint from elsewhere: origin, size, root, and name and
// bytes of its signature.
var givenForm = regexp.MustCompile(`^([^\x00-\x1f]+)\n(0|[1-9][0-9]*)\n([A-Za-z0-9+/]{43}=)\n(?:[^\x00-\x1f]+\n)*\n— ([^ +\x00-\x1f]+) ([A-Za-z0-9+/=]+)\n*$`)

// givenCode is the code of a good log for a checkpoint from elsewhere that was good.
func (s *specimen) givenCode(before, now string) int {
	is, was := givenForm.FindStringSubmatch(now), givenForm.FindStringSubmatch(before)
	if strings.Trim(now, "\n") == strings.Trim(before, "\n") || now == "" {
		return s.code
	}
	if is == nil || !utf8.ValidString(now) {
		return 5
	}
	_, badRoot := format.Decode64(is[3])
	signature, bad := format.Decode64(is[5])
	hash, _ := format.Decode64(was[5])
	switch {
	case badRoot != nil || bad != nil || len(signature) < 5:
		return 5
	case is[1] != was[1], is[4] != was[4], string(signature[:4]) != string(hash[:4]):
		return verify.Unknown
	}
	return verify.Tampered
}

// everyChange returns all changes of one log, always in the same order. Logs of two runs can
// differ by a checkpoint that the clock has made: a part is one of the log of its own run.
func everyChange(s *specimen) (changes []change) {
	add := func(of string, length int) {
		for i := range 9 * length {
			changes = append(changes, change{s, of, i / 9, i % 9})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		add(name, len(s.files[name]))
	}
	add(theKey, len(s.key))
	add(theGiven, len(last(s.anchors)))
	return changes
}

// some picks a few of all changes, from all files, or those of the part that
// everyVariable says.
func some(t *testing.T, all []change) (picked []change) {
	text := os.Getenv(everyVariable)
	if text == "" {
		for i := 0; i < len(all); i += 6007 {
			picked = append(picked, all[i])
		}
		return picked
	}
	var part, of int
	if n, err := fmt.Sscanf(text, "%d/%d", &part, &of); n != 2 || err != nil || part < 0 || part >= of {
		t.Fatalf("%s=%s: write a part, as 0/1 or 5/64", everyVariable, text)
	}
	return all[len(all)*part/of : len(all)*(part+1)/of]
}

// TestEveryBitAndEveryTruncation has both verifiers judge logs of 200 records in which one
// bit was flipped, or a file cut off, at every place. What is due is known from what was
// changed alone.
func TestEveryBitAndEveryTruncation(t *testing.T) {
	covers(t, "AU-05", "AU-06")
	j := newJudge(t)
	for _, s := range specimens(t) {
		t.Run(s.name, func(t *testing.T) {
			j.judge(t, &mutation{name: "nothing", files: s.files, key: s.key, given: last(s.anchors), want: s.code, seq: -1})
			all := everyChange(s)
			j.judgeEvery(t, some(t, all), len(all))
		})
	}
}

func (j *judge) judgeEvery(t *testing.T, picked []change, of int) {
	t.Helper()
	flips, cuts, codes, shown := 0, 0, map[int]int{}, time.Now()
	for i := range picked {
		m := picked[i].made()
		j.judge(t, m)
		codes[m.want]++
		if picked[i].bit == cut {
			cuts++
		} else {
			flips++
		}
		if time.Since(shown) > time.Minute { // it may take hours
			shown = time.Now()
			fmt.Printf("%d of %d, at %s of %s, by code %v, failed: %v\n", i+1, len(picked), picked[i].of, picked[i].specimen.name, codes, t.Failed())
		}
	}
	t.Logf("%d of %d changes: %d bits, %d cuts, by code %v", len(picked), of, flips, cuts, codes)
}

// TestTwoLinesThatBecomeOne flips bits of the line feeds at the end of each log: where that
// makes one line of two, and no other follows, the log is short, and nothing else can be
// known of it.
func TestTwoLinesThatBecomeOne(t *testing.T) {
	j, short := newJudge(t), 0
	for _, s := range specimens(t) {
		name := fileName(s.lastLog(), ".log")
		at := len(s.files[name])
		for range 3 {
			if at = bytes.LastIndexByte(s.files[name][:at], '\n'); at < 0 {
				break
			}
			for _, bit := range []int{1, 5, 6} {
				m := (&change{s, name, at, bit}).made()
				j.judge(t, m)
				if m.want == verify.Truncated && bytes.HasSuffix(m.files[name], []byte("\n")) {
					short++
				}
			}
		}
	}
	if short == 0 {
		t.Error("no log was cut short so")
	}
}
