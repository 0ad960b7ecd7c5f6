package run

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunFollowsNoLinksOfEarlierPrograms has a program put links in the place of what the next run is given.
func TestRunFollowsNoLinksOfEarlierPrograms(t *testing.T) {
	for _, row := range []struct {
		says  string
		flags []string
		link  string // the first program makes it; relative to the project
		to    string // relative to the folder of the test
		real  string // flag that is right
	}{
		{"a folder to share", []string{"--fs", "--share", "data"}, "data", "home,with: marks/keys", "--share"},
		{"a folder above it", []string{"--fs", "--share", "data/keys"}, "data", "home,with: marks", "--share"},
		{"a socket", []string{"--host-socket", "sock"}, "sock", "engine.sock", "--host-socket"},
		{"a summary", []string{"--summary", "out/run.json"}, "out", "home,with: marks/keys", "--summary"},
	} {
		for user := range world.Users {
			d := world.NewDaemon(t, world.RunPolicy)
			writeFiles(t, d, 0o600, map[string]string{"home,with: marks/keys/k": "secret\n"})
			l, err := d.World.Gateway.Listen("unix", filepath.Join(d.Dir, "engine.sock"))
			if err != nil {
				t.Fatal(err)
			}
			world.Serve(t, l, func(c net.Conn) { c.Close() })
			if r, _ := inProject(t, d, user, `ln -s "$HOST_DIR/`+row.to+`" `+row.link, "--fs"); r.code != 0 {
				t.Fatalf("%s: exit %d, %s", row.says, r.code, r.talk)
			}
			if r, _ := inProject(t, d, user, `echo began`, row.flags...); r.code != 125 || r.out != "" || !strings.Contains(r.talk, "egressd: hint: "+row.real+" ") {
				t.Errorf("%s: %s: exit %d, %q, %s", row.says, user, r.code, r.out, r.talk)
			}
			if _, err := os.Stat(filepath.Join(d.Dir, "home,with: marks", "keys", "run.json")); err == nil {
				t.Errorf("%s: %s: a file was made by the link", row.says, user)
			}
		}
	}
}
