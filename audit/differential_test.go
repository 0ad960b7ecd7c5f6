package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/verify"
)

// TestTheSecondVerifierAgrees damages small logs in many ways, and has the verifier
// that was written from docs/reference/audit-format.md alone judge them too. With
// EGRESSD_AUDIT_LOGS it is so many logs, and not sixty.
func TestTheSecondVerifierAgrees(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("EGRESSD_AUDIT_LOGS"))
	if err != nil {
		count = 60
	}
	good := signed(t, Options{Retain: Retain{Segments: 2}})
	random := rand.New(rand.NewPCG(5, uint64(count)))
	root := t.TempDir()
	var input bytes.Buffer
	var ours []string
	var did []string
	for i := range count {
		dir := filepath.Join(root, fmt.Sprint(i))
		copyFolder(t, good.dir, dir)
		s := &signedLog{dir: dir, key: good.key}
		what := mutate(t, random, s)
		given, path := "", ""
		if random.IntN(3) == 0 {
			given = good.anchors[random.IntN(len(good.anchors))]
			if random.IntN(4) == 0 {
				given = flipBit(random, given)
			}
			path = filepath.Join(root, fmt.Sprint(i, ".given"))
			writeFile(t, path, []byte(given))
		}
		code := 5
		if r, err := verify.Log(dir, s.key, []byte(given)); err == nil {
			code = r.Code
			what += ": " + r.Problem
		} else {
			what += ": " + err.Error()
		}
		ours, did = append(ours, fmt.Sprint(code)), append(did, what+" given "+path)
		fmt.Fprintf(&input, "%s\t%s\t%s\n", dir, s.key, path)
	}
	theirs := strings.Fields(secondVerifier(t, &input))
	if len(theirs) != len(ours) {
		t.Fatalf("it judged %d logs of %d: %q", len(theirs), len(ours), theirs)
	}
	seen := make(map[string]int)
	for i := range ours {
		seen[ours[i]]++
		if theirs[i] != ours[i] {
			t.Errorf("log %d (%s): %s, and the second verifier says %s", i, did[i], ours[i], theirs[i])
		}
	}
	t.Logf("codes: %v", seen)
	if len(seen) < 4 {
		t.Errorf("only the codes %v came up", seen)
	}
}

// secondVerifier judges one log a line, in one process.
func secondVerifier(t *testing.T, input *bytes.Buffer) string {
	t.Helper()
	const driver = `
import contextlib, importlib.util, io, sys
spec = importlib.util.spec_from_file_location("verify", sys.argv[1])
v = importlib.util.module_from_spec(spec); spec.loader.exec_module(v)
for line in sys.stdin:
    d, key, given = line.rstrip("\n").split("\t")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = v.main([d, "--key", key] + (["--checkpoint", given] if given else []))
        except SystemExit as e:
            code = e.code
    print(code)
`
	cmd := exec.Command("python3", "-c", driver, filepath.Join("..", "docs", "verify", "verify.py"))
	cmd.Stdin = input
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return string(out)
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func flipBit(random *rand.Rand, text string) string {
	b := []byte(text)
	b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	return string(b)
}

// mutate does one thing to a log, or two, and says what.
func mutate(t *testing.T, random *rand.Rand, s *signedLog) string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		if e.Name() != "lock" {
			paths = append(paths, filepath.Join(s.dir, e.Name()))
		}
	}
	pick := func() string { return paths[random.IntN(len(paths))] }
	path := pick()
	b := readFile(t, path)
	at := random.IntN(len(b) + 1)
	lines := bytes.SplitAfter(b, []byte("\n"))
	i, j := random.IntN(len(lines)), random.IntN(len(lines))
	what := random.IntN(12)
	said := fmt.Sprintf("mutation %d of %s at %d, lines %d and %d", what, filepath.Base(path), at, i, j)
	switch what {
	case 0:
	case 1:
		writeFile(t, path, []byte(flipBit(random, string(b)+" ")[:len(b)]))
	case 2:
		writeFile(t, path, b[:at])
	case 3:
		other := pick()
		said += " with " + filepath.Base(other)
		c := readFile(t, other)
		writeFile(t, path, c)
		writeFile(t, other, b)
	case 4:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	case 5:
		lines[i], lines[j] = lines[j], lines[i]
		writeFile(t, path, bytes.Join(lines, nil))
	case 6:
		writeFile(t, path, bytes.Join(append(append([][]byte(nil), lines[:i]...), lines[min(i+1, len(lines)):]...), nil))
	case 7:
		writeFile(t, path, bytes.Join(append(append(append([][]byte(nil), lines[:i]...), lines[j]), lines[i:]...), nil))
	case 8:
		junk := make([]byte, 1+random.IntN(4096))
		for k := range junk {
			junk[k] = byte(random.Uint32())
		}
		writeFile(t, path, append(b, junk...))
	case 9:
		writeFile(t, filepath.Join(s.dir, fmt.Sprintf("%08d%s", 1+random.IntN(6), filepath.Ext(path))), b)
	case 10: // cut to a record, or to a checkpoint
		writeFile(t, path, b[:bytes.LastIndexByte(b[:at], '\n')+1])
		said += "; " + mutate(t, random, s)
	case 11:
		if random.IntN(2) == 0 {
			s.key = newSigner("egressd/" + strings.Repeat("0", 32)).public()
		}
		said += "; " + mutate(t, random, s)
	}
	return said
}

// TestTheSecondVerifierByItself runs its own tests: RFC 8032, and the log of the page.
func TestTheSecondVerifierByItself(t *testing.T) {
	cmd := exec.Command("python3", "-m", "unittest", "test_verify")
	cmd.Dir = filepath.Join("..", "docs", "verify")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Ran 6 tests") {
		t.Errorf("%v\n%s", err, out)
	}
}
