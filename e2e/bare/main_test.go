// Package bare runs programs without egressd and under egressd run, and compares what they come to: exit status or
// signal, output, and the files that they leave. Each row of the tables is a line of shell.
package bare

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

func TestMain(m *testing.M) {
	// Half of the rows wait for something.
	if err := flag.Set("test.parallel", "6"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	world.Main(m, world.Suite{})
}

// searchPath is the PATH of the rows. Debian keeps the commands of a PostgreSQL server elsewhere.
func searchPath() string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/local/go/bin", "/usr/lib/go/bin"} {
		found, _ := filepath.Glob(pattern)
		for _, dir := range found {
			path += ":" + dir
		}
	}
	return path
}

// layOut prepares what all rows share: the folder that they see as /mnt, and files of the machine by which uid 1000 is
// a user of two groups.
func layOut(t *testing.T, d *world.Daemon) string {
	t.Helper()
	shared := filepath.Join(d.Dir, "shared")
	cache := filepath.Join(shared, "go-cache")
	if err := errors.Join(os.MkdirAll(cache, 0o755), os.Chmod(cache, 0o777)); err != nil {
		t.Fatal(err)
	}
	passwd := "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\ndev:x:1000:1000:Dev,,,:/home/dev:/bin/bash\n"
	for name, text := range map[string]string{
		"policy.yaml": "version: 1\nallow: [\"*.allowed.test\"]\naudit: {durability: process}\n",
		"passwd":      passwd,
		"group":       "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\ndev:x:1000:\nteam:x:1001:dev\n",
		"hosts":       "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + hostName(t) + "\n",
		"resolv.conf": "nameserver 9.9.9.53\n",
	} {
		if err := os.WriteFile(filepath.Join(shared, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", world.Egressd.Path(), filepath.Join(shared, "egressd")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return shared
}

func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// openUp lets other users into a folder of a test and those above it.
func openUp(dir string) error {
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
