package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// mutationsVariable says how many mutated logs both verifiers judge, instead of the
// few hundred of every run.
const mutationsVariable = "EGRESSD_AUDIT_MUTATIONS"

// A python is docs/verify/verify.py, running.
type python struct {
	in  *json.Encoder
	out *bufio.Scanner
}

// An opinion is what docs/verify/verify.py says of a log.
type opinion struct {
	Code       int
	Text       string
	First, End *int64
}

func startPython(t *testing.T) *python {
	t.Helper()
	cmd := exec.Command("python3", filepath.Join("testdata", "verify_many.py"), filepath.Join("..", "docs", "verify", "verify.py"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("verify_many.py: %v", err)
		}
	})
	return &python{json.NewEncoder(in), bufio.NewScanner(out)}
}

// ask has the log in dir verified; answer waits for what comes of it.
func (p *python) ask(t *testing.T, dir string, m *mutation, checkpoints ...string) {
	t.Helper()
	asked := map[string]any{"dir": dir, "key": m.key, "checkpoints": checkpoints}
	if err := p.in.Encode(asked); err != nil {
		t.Fatal(err)
	}
}

func (p *python) answer(t *testing.T) (o opinion) {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("verify_many.py ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// A mutation is a changed log, and the code that is due.
type mutation struct {
	name  string
	files map[string][]byte
	key   string
	given string
	want  int
	seq   int // with Tampered: a record that has to be among those that are named, or -1
}

// A judge has both verifiers judge logs, one after the other in one folder.
type judge struct {
	python *python
	dir    string
	laid   map[string][]byte
	given  string
	n      int
	report *verify.Report // the last one
}

func (m *mutation) verify(dir string) (*verify.Report, error) {
	return verify.Log(dir, m.key, []byte(m.given))
}

func newJudge(t *testing.T) *judge {
	t.Helper()
	return &judge{python: startPython(t), dir: t.TempDir(), given: filepath.Join(t.TempDir(), "given"), laid: map[string][]byte{}}
}

func (j *judge) lay(t *testing.T, files map[string][]byte) {
	t.Helper()
	for name := range j.laid {
		if _, kept := files[name]; !kept {
			if err := os.Remove(filepath.Join(j.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, content := range files {
		if before, there := j.laid[name]; !there || !bytes.Equal(before, content) {
			writeFile(t, filepath.Join(j.dir, name), content)
		}
	}
	j.laid = files
}

func (j *judge) judge(t *testing.T, m *mutation) {
	t.Helper()
	j.lay(t, m.files)
	j.judgeLaid(t, m)
}

// judgeLaid compares what both say with what is due.
func (j *judge) judgeLaid(t *testing.T, m *mutation) {
	t.Helper()
	j.n++
	var checkpoints []string
	if m.given != "" {
		writeFile(t, j.given, []byte(m.given))
		checkpoints = []string{j.given}
	}
	j.python.ask(t, j.dir, m, checkpoints...)
	code, said := verify.Good, ""
	from, to := int64(-1), int64(-1)
	switch r, err := m.verify(j.dir); {
	case err != nil:
		code, said = 5, err.Error()
	default:
		code, said = r.Code, r.Problem
		j.report = r
		if r.From != nil {
			from, to = *r.From, *r.To
		}
	}
	o := j.python.answer(t)
	if code != m.want || o.Code != m.want {
		t.Errorf("%s: want %d\n\tegressd:   %d %s\n\tverify.py: %d %s%s", m.name, m.want, code, said, o.Code, o.Text, kept(t, j.dir))
		return
	}
	if m.want != verify.Tampered || m.seq < 0 {
		return
	}
	seq := int64(m.seq)
	if seq < from || seq >= to || o.First == nil || seq < *o.First || o.End != nil && seq >= *o.End {
		t.Errorf("%s: record %d was changed\n\tegressd:   %d to %d %s\n\tverify.py: %+v", m.name, seq, from, to, said, o)
	}
}

// kept keeps a folder that the verifiers do not agree about, where
// EGRESSD_AUDIT_KEEP says to.
func kept(t *testing.T, dir string) string {
	to := os.Getenv("EGRESSD_AUDIT_KEEP")
	if to == "" {
		return ""
	}
	to, err := os.MkdirTemp(to, "disagree-")
	if err == nil {
		err = os.CopyFS(filepath.Join(to, "log"), os.DirFS(dir))
	}
	if err != nil {
		t.Error(err)
	}
	return "\n\tkept in " + to
}

// TestBothVerifiersAgree has egressd's verifier and the one in docs/verify, which was
// written from the page alone, judge logs that were changed at random in all ways of
// mutations; an oracle that knows only what was changed says which code is due.
func TestBothVerifiersAgree(t *testing.T) {
	covers(t, "AU-06", "AU-11", "AU-25", "AU-27")
	n := 150
	if text := os.Getenv(mutationsVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	all, j := specimens(t), newJudge(t)
	for _, s := range all {
		j.judge(t, &mutation{name: "nothing, " + s.name, files: s.files, key: s.key, want: s.code, seq: -1})
	}
	random := rand.New(rand.NewPCG(1, uint64(n)))
	codes, made := map[int]int{}, map[string]int{}
	for i := 0; j.n < n; i++ {
		s := all[random.IntN(len(all))]
		kind := kinds[i%len(kinds)]
		m := kind.make(s.copy(s.name), random)
		if m == nil { // there is no such thing in this log
			continue
		}
		m.name = fmt.Sprintf("%d: %s, %s: %s", i, s.name, kind.name, m.name)
		m.packSome(random)
		j.judge(t, m)
		codes[m.want]++
		made[kind.name]++
	}
	t.Logf("%d logs, by code %v, by kind %v", j.n, codes, made)
	for _, kind := range kinds {
		if made[kind.name] == 0 {
			t.Errorf("no log was made: %s", kind.name)
		}
	}
	for code := range 6 {
		if codes[code] == 0 {
			t.Errorf("no log was made for code %d", code)
		}
	}
}

// What files cannot say: links, folders and pipes in the place of files.
func TestBothVerifiersAgreeAboutWhatIsNoFile(t *testing.T) {
	s, j := specimens(t)[0], newJudge(t)
	first, final := fileName(1, ".log"), fileName(s.lastLog(), ".log")
	for name, row := range map[string]struct {
		file string
		put  func(path string) error
		want int
	}{
		"a link":                           {first, func(p string) error { return moveAndLink(t, p) }, verify.Good},
		"a link to nothing":                {first, func(p string) error { return os.Symlink("nothing", p) }, verify.Tampered},
		"a link to nothing at the end":     {final, func(p string) error { return os.Symlink("nothing", p) }, verify.Truncated},
		"a link for checkpoints":           {fileName(1, ".ckpt"), func(p string) error { return moveAndLink(t, p) }, verify.Good},
		"a link to nothing, of them":       {fileName(1, ".ckpt"), func(p string) error { return os.Symlink("nothing", p) }, verify.Tampered},
		"a folder":                         {final, func(p string) error { return os.Mkdir(p, 0o700) }, 5},
		"a folder for checkpoints":         {fileName(1, ".ckpt"), func(p string) error { return os.Mkdir(p, 0o700) }, 5},
		"a pipe":                           {final, func(p string) error { return syscall.Mkfifo(p, 0o600) }, 5},
		"a pipe for checkpoints":           {fileName(1, ".ckpt"), func(p string) error { return syscall.Mkfifo(p, 0o600) }, 5},
		"a pipe in the place of a tree":    {fileName(1, ".tree"), func(p string) error { return syscall.Mkfifo(p, 0o600) }, 5},
		"a pipe for what was removed":      {format.RemovedName, func(p string) error { return syscall.Mkfifo(p, 0o600) }, 5},
		"a folder for what was removed":    {format.RemovedName, func(p string) error { return os.Mkdir(p, 0o700) }, 5},
		"a link to nothing for it":         {format.RemovedName, func(p string) error { return os.Symlink("nothing", p) }, verify.Good},
		"a folder of another name":         {"damaged-x", func(p string) error { return os.Mkdir(p, 0o700) }, verify.Good},
		"a link to nothing behind the end": {fileName(s.lastLog()+1, ".log"), func(p string) error { return os.Symlink("nothing", p) }, verify.Good},
	} {
		j.dir, j.laid = t.TempDir(), nil
		j.lay(t, s.files)
		path := filepath.Join(j.dir, row.file)
		if !strings.HasPrefix(name, "a link for") && name != "a link" {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		if err := row.put(path); err != nil {
			t.Fatal(err)
		}
		j.judgeLaid(t, &mutation{name: name, key: s.key, want: row.want, seq: -1})
	}
}

func moveAndLink(t *testing.T, path string) error {
	elsewhere := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(elsewhere, readFile(t, path), 0o600); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(elsewhere, path)
}
