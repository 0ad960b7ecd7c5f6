package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunInspectsWhereARuleLooks has programs trust egressd's authority without
// being told of it.
func TestRunInspectsWhereARuleLooks(t *testing.T) {
	d := world.NewDaemon(t, `version: 1
allow: [{host: a.allowed.test, methods: [GET], paths: ["/public/**"], inject: {header: Authorization, value: "Bearer {}", file: api.secret}}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`)
	r := runAs(t, d, "user", `curl -sS -m9 https://a.allowed.test/public/x; echo
curl -sS -m9 https://a.allowed.test/private; curl -sS -m9 https://evil.test/
python3 -c 'import urllib.request; print(urllib.request.urlopen("https://a.allowed.test/public/py", timeout=9).status)'
cat api.secret; ls ca; echo "secret $(cat api.secret | wc -c)"; env | grep -c '^SSL_CERT_FILE='`)
	for _, want := range []string{"origin ", `"class":"path-denied"`, `"class":"default-deny"`, "\n200\n", "secret 0\n1\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("printed %q (%s), want %q", r.out, r.talk, want)
		}
	}
	if strings.Contains(r.out, world.RealSecret) || strings.Contains(r.out, "key") {
		t.Errorf("printed %q", r.out)
	}
}

// TestRunRefusesWhereThereIsNoSandbox takes user namespaces away.
func TestRunRefusesWhereThereIsNoSandbox(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	ran := filepath.Join(d.Dir, "ran")
	cmd := exec.Command("unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh",
		world.Egressd.Path(), "run", "--config", d.Config, "--", "touch", ran)
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	var talk bytes.Buffer
	cmd.Stderr = &talk
	d.World.Gateway.Run(cmd)
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(talk.String(), "egressd: hint: allow unprivileged user namespaces") {
		t.Errorf("exit %d, %q", code, talk.String())
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program ran")
	}
}

// TestRunsBesideEachOther has two runs at a time, each with a log of its own.
func TestRunsBesideEachOther(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	done := make(chan *ran, 2)
	for range 2 {
		go func() { done <- runAs(t, d, "user", `curl -sS -m9 http://a.allowed.test/; sleep 0.3`) }()
	}
	for range 2 {
		if r := <-done; r.code != 0 || !strings.Contains(r.out, "origin") {
			t.Errorf("exit %d, %q %q", r.code, r.out, r.talk)
		}
	}
	for of, want := range map[string]string{"last": "1 ", "all": "2 "} {
		log := exec.Command(world.Egressd.Path(), "log", "--config", d.Config, "--run", of, "via:transparent", "-kind:dns")
		log.Dir = d.Dir
		log.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
		out, err := log.Output()
		if err != nil || !strings.Contains(string(out), "  "+want) || !strings.Contains(string(out), "a.allowed.test:80") {
			t.Errorf("%v, egressd log --run %s: %q", err, of, out)
		}
	}
}

// TestRunKeepsThePolicyAndTrustWhereTheyAre: what was moved aside with the folder above
// it could be replaced for the next run.
func TestRunKeepsThePolicyAndTrustWhereTheyAre(t *testing.T) {
	for user := range world.Users {
		d := world.NewDaemon(t, world.RunPolicy)
		before, err := os.ReadFile(d.Config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(d.Dir, ".local/state/egressd/audit"), 0o777); err != nil {
			t.Fatal(err) // without XDG_STATE_HOME
		}
		r := runAs(t, d, user, `mkdir work; echo text >work/a; mv work/a b && cat b; ls .local/state/egressd
echo >`+d.Config+`; rm -f `+d.Config+`; mv egressd/trust aside; mv egressd aside
for new in trust trust/x ca audit bundles sockets else; do mkdir egressd/$new && echo made $new; done
here=$PWD; cd ..; mv "$here" "$here.aside" && mkdir "$here" && echo 'default: allow' >`+d.Config+`
ls -d "$here" "$here/egressd"`)
		want := "text\n" + d.Dir + "\n" + filepath.Join(d.Dir, "egressd") + "\n"
		if r.out != want {
			t.Errorf("as %s: it printed %q, want %q (%s)", user, r.out, want, r.talk)
		}
		if after, err := os.ReadFile(d.Config); err != nil || !bytes.Equal(after, before) {
			t.Errorf("as %s: the policy is now %q: %v", user, after, err)
		}
	}
}
