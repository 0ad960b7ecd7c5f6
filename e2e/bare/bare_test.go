package bare

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// A row is one line of shell.
type row struct {
	name   string
	line   string   // for bash, or
	argv   []string // a program and its arguments
	needs  string   // commands beside those that every Debian has; scripts/setup.sh installs their packages
	modes  []mode   // nil: all
	stdin  string   // without a terminal
	keys   []string // on a terminal: a text to wait for and what is typed then, in turns
	flags  []string // of egressd run
	before string   // a line of shell that runs first, outside, and may change the directory
	draws  bool     // its output depends on time, and is not compared
	long   bool     // only with EGRESSD_E2E_BARE set

	differs string // why the sides differ, a key of reasons
	in      []mode // in which modes they do; nil: in all
}

var (
	everyMode  = []mode{{"dev", false}, {"dev", true}, {"root", false}, {"root", true}}
	noTerminal = []mode{{"dev", false}, {"root", false}}
	terminals  = []mode{{"dev", true}, {"root", true}}
	devAlone   = []mode{{"dev", false}}
	asDev      = []mode{{"dev", false}, {"dev", true}}
	asRoot     = []mode{{"root", false}, {"root", true}}
)

// longVariable has all rows run.
const longVariable = "EGRESSD_E2E_BARE"

// A table has rows of one subject.
type table struct {
	subject string
	modes   []mode // of rows that say nothing else
	rows    []row
}

var tables = []table{
	{"shells", everyMode, shells},
	{"files", noTerminal, fileRows},
	{"system", noTerminal, system},
	{"tools", noTerminal, tools},
	{"languages", noTerminal, languages},
	{"apart", noTerminal, apartRows},
	{"reported", noTerminal, reported},
}

// TestRunIsAsIfItWereNotThere runs each row bare and under egressd run.
func TestRunIsAsIfItWereNotThere(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := openUp(d.Dir); err != nil {
		t.Fatal(err)
	}
	shared := layOut(t, d)
	number := 0
	for _, table := range tables {
		for i := range table.rows {
			r := &table.rows[i]
			if number++; r.long && os.Getenv(longVariable) == "" {
				continue
			}
			port, dir := 20000+10*number, filepath.Join(d.Dir, "rows", fmt.Sprint(number))
			if r.keys != nil {
				r.modes = terminals
			} else if r.modes == nil {
				r.modes = table.modes
			}
			t.Run(table.subject+"/"+r.name, func(t *testing.T) {
				t.Parallel()
				r.compare(t, side{world: d.World, shared: shared, dir: dir, port: port})
			})
		}
	}
}

func (r *row) compare(t *testing.T, s side) {
	for _, command := range strings.Fields(r.needs) {
		if !slices.ContainsFunc(filepath.SplitList(searchPath()), func(dir string) bool {
			_, err := exec.LookPath(filepath.Join(dir, command))
			return err == nil
		}) {
			t.Fatalf("there is no command %s; make setup installs it", command)
		}
	}
	for i, m := range r.modes {
		bare, jailed := s, s
		bare.mode, bare.dir = m, filepath.Join(s.dir, fmt.Sprint(i), "bare")
		jailed.mode, jailed.dir, jailed.jailed = m, filepath.Join(s.dir, fmt.Sprint(i), "run"), true
		left, right := bare.run(t, r), jailed.run(t, r)
		if left.status == doesNotEnd {
			t.Fatalf("%v: %s: %s: %s%s", m, r.line, left.status, left.out, left.err)
		}
		if r.draws {
			left.out, right.out, left.err, right.err = "", "", "", ""
		}
		differences := left.compare(right)
		expected := r.differs != "" && (r.in == nil || slices.Contains(r.in, m))
		switch {
		case expected && len(differences) == 0:
			t.Errorf("%v: there is no difference any more; take %q from the row", m, r.differs)
		case expected:
			t.Logf("%v: %s: %s", m, r.differs, strings.Join(differences, "\n"))
		case len(differences) > 0:
			t.Errorf("%v: %s\n%s", m, r.line, strings.Join(differences, "\n"))
		}
	}
}

// compare returns what is not the same of a line bare and under run.
func (o *outcome) compare(jailed *outcome) (differences []string) {
	for _, what := range []struct{ name, bare, jailed string }{
		{"status", o.status, jailed.status},
		{"output", o.out, jailed.out},
		{"errors", o.err, jailed.err},
		{"files", strings.Join(o.files, "\n"), strings.Join(jailed.files, "\n")},
	} {
		if what.bare != what.jailed {
			differences = append(differences, fmt.Sprintf("%s\n\tbare: %s\n\trun:  %s", what.name, lines(what.bare, what.jailed), lines(what.jailed, what.bare)))
		}
	}
	return differences
}

// lines quotes the lines of a text that another one does not have, or all if it has them in another order.
func lines(text, other string) string {
	has := slices.Collect(strings.Lines(other))
	var own []string
	for line := range strings.Lines(text) {
		if !slices.Contains(has, line) {
			own = append(own, line)
		}
	}
	if own != nil {
		text = strings.Join(own, "")
	}
	return fmt.Sprintf("%.1500q", text)
}
