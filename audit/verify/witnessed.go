package verify

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// Witnessed says what is asked of a log beside its own signatures. The zero value asks
// nothing.
type Witnessed struct {
	// By are the witnesses each of which has to have cosigned a checkpoint.
	By []WitnessKey
	// Within is how old the newest cosignature of each may be; any age where it is 0.
	// A log that was cut back to an earlier checkpoint has the cosignature of that time, and a witness
	// gives it no later one.
	Within time.Duration
}

// A WitnessReport is what a witness has cosigned of a log.
type WitnessReport struct {
	Name string    `json:"name"`
	Size int64     `json:"size"` // of the newest checkpoint that it has cosigned
	Time time.Time `json:"time"` // the latest at which it has
}

// cosignedFolder is where a log keeps the newest checkpoint that each witness has
// cosigned, a file cosignedExtension for each.
const (
	cosignedFolder    = "witnesses"
	cosignedExtension = ".note"
	cosignedMost      = 1 << 20 // bytes of such a file that are read
)

// SaveCosigned keeps what a witness has cosigned last in the folder of the log.
func SaveCosigned(dir string, k WitnessKey, cosigned []byte) error {
	folder := filepath.Join(dir, cosignedFolder)
	if err := os.Mkdir(folder, format.DirectoryRW); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	sum := sha256.Sum256([]byte(k.text))
	return durable.Replace(filepath.Join(folder, fmt.Sprintf("%x%s", sum[:8], cosignedExtension)), cosigned, format.FileRW)
}

// A witnessing is what vouches for a log from outside.
type witnessing struct {
	asked   Witnessed
	all     []givenNote // by size
	given   int64       // the largest size that is vouched for without a witness
	reports []WitnessReport
	now     time.Time
}

// readCosigned reads a file of the folder, which whoever has the log can have replaced.
func readCosigned(path string) ([]givenNote, error) {
	f, err := format.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, cosignedMost+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > cosignedMost:
		return nil, fmt.Errorf("%s is too large for checkpoints", path)
	}
	notes, err := parseGiven(text)
	if err == nil && len(notes) == 0 {
		err = errors.New("it holds no checkpoint")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return notes, nil
}

// collect adds to what was given, by size, what the log in dir has of the witnesses.
func (a Witnessed) collect(dir, key string, given []givenNote) (*witnessing, error) {
	v := &witnessing{asked: a, all: slices.Clone(given), now: time.Now()}
	if n := len(given); n > 0 {
		v.given = given[n-1].Size
	}
	if len(a.By) == 0 {
		return v, nil
	}
	paths, err := filepath.Glob(filepath.Join(escapeGlob(dir), cosignedFolder, "*"+cosignedExtension))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		notes, err := readCosigned(path)
		if err != nil {
			return nil, err
		}
		for _, g := range notes {
			if g.IsOf(key) && slices.ContainsFunc(a.By, g.cosignedBy) {
				v.all = append(v.all, g)
			}
		}
	}
	sortGiven(v.all)
	return v, nil
}

// escapeGlob is a path as a pattern for itself alone.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// cosignedBy reports whether a note has a signature that says it is the witness's.
func (g givenNote) cosignedBy(k WitnessKey) bool {
	_, signatures, err := format.SplitNote(g.note)
	_, there := k.line(signatures)
	return err == nil && there
}

// judge looks at the cosignatures. Each result is why the log is not good, or "": one is wrong,
// a witness has none, its newest is too old.
func (v *witnessing) judge() (wrong, unsigned, stale string) {
	for _, k := range v.asked.By {
		r, err := v.report(k)
		v.reports = append(v.reports, r)
		switch {
		case err != nil:
			wrong = cmp.Or(wrong, "a cosignature of the witness "+k.Name+" is wrong")
		case r.Time.IsZero():
			unsigned = cmp.Or(unsigned, "the witness "+k.Name+" has cosigned no checkpoint that is there or was given")
		case v.asked.Within > 0 && v.now.Sub(r.Time) > v.asked.Within:
			stale = cmp.Or(stale, fmt.Sprintf("the witness %s has cosigned the log last at %s, which is longer ago than %s", k.Name, r.Time.Format(time.RFC3339), v.asked.Within))
		}
	}
	return wrong, unsigned, stale
}

// report finds the newest that a witness has cosigned. The error says that one of its
// signatures is wrong.
func (v *witnessing) report(k WitnessKey) (WitnessReport, error) {
	r := WitnessReport{Name: k.Name}
	for _, g := range v.all {
		text, signatures, err := format.SplitNote(g.note)
		if err != nil {
			return r, err
		}
		at, err := k.check(text, signatures)
		switch {
		case err == errNoCosignature:
		case err != nil:
			return r, err
		case g.Size > r.Size || at.After(r.Time):
			r.Size, r.Time = max(g.Size, r.Size), maxTime(at, r.Time)
		}
	}
	return r, nil
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// vouched is how many records something outside vouches for: what was given, or all
// witnesses that were asked for.
func (v *witnessing) vouched() int64 {
	if len(v.reports) == 0 {
		return v.given
	}
	least := slices.MinFunc(v.reports, func(a, b WitnessReport) int { return cmp.Compare(a.Size, b.Size) })
	return max(v.given, least.Size)
}
