package egressd_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// most bounds the bytes of a file in git: what is larger is almost always built, and stays in every clone.
const most = 1 << 20

// mayBeTracked names files in git that are programs or larger than most, each with a reason.
var mayBeTracked = map[string]string{}

// programs are the first bytes of compiled programs and libraries, by format.
var programs = map[string][]string{
	"ELF":    {"\x7fELF"},
	"Mach-O": {"\xfe\xed\xfa\xce", "\xfe\xed\xfa\xcf", "\xce\xfa\xed\xfe", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe", "\xca\xfe\xba\xbf"},
	"PE":     {"MZ"},
}

// TestNoProgramIsInGit looks at each file that git tracks, as it is in the working tree.
func TestNoProgramIsInGit(t *testing.T) {
	listing, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	names := strings.Split(strings.TrimSuffix(string(listing), "\x00"), "\x00")
	if len(names) < 1000 {
		t.Fatalf("git lists %d files; the test runs in the wrong place", len(names))
	}
	excused := map[string]bool{}
	for _, name := range names {
		why := unwelcome(t, name)
		if why != "" && mayBeTracked[name] == "" {
			t.Errorf("%s is %s: git rm --cached %[1]s, and add it to .gitignore", name, why)
		}
		excused[name] = why != ""
	}
	for name := range mayBeTracked {
		if !excused[name] {
			t.Errorf("mayBeTracked: %s needs no row", name)
		}
	}
}

// unwelcome says what keeps a file out of git; it returns "" if nothing does, or if the file was removed.
func unwelcome(t *testing.T, name string) string {
	t.Helper()
	info, err := os.Lstat(name)
	if os.IsNotExist(err) || err == nil && !info.Mode().IsRegular() {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		return "larger than 1 MiB"
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	head, err := io.ReadAll(io.LimitReader(file, 4))
	if err != nil {
		t.Fatal(err)
	}
	for format, starts := range programs {
		for _, start := range starts {
			if bytes.HasPrefix(head, []byte(start)) {
				return "a compiled program (" + format + ")"
			}
		}
	}
	return ""
}
