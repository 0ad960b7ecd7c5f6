package docs

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testfiles"
)

// TestTutorialsDoWhatTheyShow types each command of each tutorial, in a network in which every host answers.
func TestTutorialsDoWhatTheyShow(t *testing.T) {
	found := 0
	for name, page := range testfiles.Pages(t) {
		if !strings.HasPrefix(name, "tutorial/") {
			continue
		}
		found++
		t.Run(filepath.Base(name), func(t *testing.T) {
			w, more := openWorld(t), map[string]string{}
			if name == "tutorial/agent-without-secrets.md" {
				serveSecretly(t, w)
				more["claude"], more["npm"] = modelUser, realNPM
			}
			p := reader(t, w, more)
			steps := stepsOf(page)
			if len(steps) < 5 {
				t.Errorf("the page has %d commands", len(steps))
			}
			for _, s := range steps {
				p.follow(t, s)
			}
		})
	}
	if found < 5 {
		t.Errorf("there are %d tutorials", found)
	}
}

// programs stand for programs of the reader's that the tests do not have.
var programs = map[string]string{
	"claude": "#!/bin/sh\n" +
		"curl -sS -m9 -o /dev/null -X POST https://api.anthropic.com/v1/messages\n" +
		"curl -sS -m9 -o /dev/null https://docs.python.org/3/library/json.html\n" +
		"curl -sS -m9 -o /dev/null https://api.github.com/repos/acme/app/issues\n" +
		"echo 'claude: done'\n",
	"npm": "#!/bin/sh\n" +
		"curl -sS -m9 -o /dev/null https://registry.npmjs.org/left-pad\n" +
		"curl -sS -m9 -o /dev/null https://cdn.example.org/left-pad.tgz\n" +
		"echo \"npm $1: done\"\n",
}

// openWorld returns the world, in which every host answers on the ports of the web.
func openWorld(t *testing.T) *world.World {
	t.Helper()
	w := world.Open(t)
	serveSites(w)
	return w
}

func serveSites(w *world.World) {
	for host, text := range map[string]string{"registry.npmjs.org": `{"name":"left-pad"}`, "example.com": "<h1>Example Domain</h1>"} {
		w.Origin.Sites.Store(host, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, text+"\n") }))
	}
}

// reader is somebody at a shell with an empty HOME, who can reach every host of the internet and has some programs.
func reader(t *testing.T, w *world.World, more ...map[string]string) *typist {
	t.Helper()
	resolver, _, _ := strings.Cut(world.Resolver, ":")
	files := map[string]string{"resolv.conf": "nameserver " + resolver + "\n", "roots.pem": string(w.Origin.Ca.PEM()), "begin": begin}
	for _, some := range slices.Insert(more, 0, programs) {
		for name, script := range some {
			files["bin/"+name] = script
		}
	}
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "begin", world.Egressd.Path()}, world.Users["user"]...)...)
	cmd.Dir = scripts(t, files)
	cmd.Env = []string{"HOME=/home/me", "PATH=/home/me/.local/bin:" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	return typistIn(t, w.Gateway, cmd)
}

// scripts writes files that can be run into a new folder.
func scripts(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := testfiles.FilesIn(t, files)
	for name := range files {
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// begin makes /home/me, has names resolved by the server of the tests and certificates of its hosts trusted, and
// becomes a shell of an ordinary user.
const begin = `set -e
cp "$1" bin/egressd; shift # which may be in a home
mount -t tmpfs tmpfs /home
mkdir -p /home/me/.local /home/me/.ssh
cp -r bin /home/me/.local/bin
umount /etc/resolv.conf
mount --bind resolv.conf /etc/resolv.conf
mount --bind roots.pem /etc/ssl/certs/ca-certificates.crt
cd /home/me
exec "$@" bash
`

func TestAnOutputThatDiffersIsFound(t *testing.T) {
	p := &typist{known: map[string]string{}}
	printed := []string{"egressd: denied: example.com:80 (CR7RN90HQE)", "1 request in 0.3 s, 12 B down"}
	for shown, want := range map[string]bool{
		"egressd: denied: example.com:80 (CR7Q316BPV)": true,
		"1 request in 1.2 s, 1.5 kB down":              true,
		"1 request …":                                  true,
		"egressd: denied: example.org:80 (CR7Q316BPV)": false,
		"2 requests in 1.2 s, 1.5 kB down":             false,
	} {
		if p.finds(shown, printed) != want {
			t.Errorf("%q: found %v, want %v", shown, !want, want)
		}
	}
	if p.known["CR7Q316BPV"] != "CR7RN90HQE" {
		t.Errorf("%q", p.known)
	}
}
