package other

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testfiles"
)

// TestTheVersionSaysHowToUpgrade: by the way in which this program was installed.
func TestTheVersionSaysHowToUpgrade(t *testing.T) {
	for file, row := range map[string]struct{ program, want string }{
		"var/lib/dpkg/info/egressd.list":      {"/usr/bin/egressd", "apt install"},
		"var/lib/rpm/rpmdb.sqlite":            {"/usr/bin/egressd", "dnf upgrade"},
		"usr/lib/sysimage/rpm/rpmdb.sqlite":   {"/usr/bin/egressd", "dnf upgrade"},
		".dockerenv":                          {"/usr/bin/egressd", "docker load"},
		"run/.containerenv":                   {"/usr/bin/egressd", "docker load"},
		".dockerenv ":                         {"/usr/local/bin/egressd", "in the place of /usr/local/bin/egressd"},
		"etc/hosts":                           {"/home/me/.local/bin/egressd", "in the place of /home/me/.local/bin/egressd"},
		"var/lib/dpkg/info/egressd.list.save": {"/usr/local/bin/egressd", "in the place of /usr/local/bin/egressd"},
	} {
		if got := upgrade(testfiles.FilesIn(t, map[string]string{strings.TrimSpace(file): ""}), row.program); !strings.Contains(got, row.want) {
			t.Errorf("%s with %s: %q, want %q", row.program, file, got, row.want)
		}
	}
}
