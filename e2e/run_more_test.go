package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunInspectsWhereARuleLooks has programs trust egressd's authority without
// being told of it.
func TestRunInspectsWhereARuleLooks(t *testing.T) {
	d := newDaemon(t, `version: 1
allow: [{host: a.allowed.test, methods: [GET], paths: ["/public/**"], inject: {header: Authorization, value: "Bearer {}", file: api.secret}}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`)
	r := d.runAs(t, "user", `curl -sS -m9 https://a.allowed.test/public/x; echo
curl -sS -m9 https://a.allowed.test/private; curl -sS -m9 https://evil.test/
python3 -c 'import urllib.request; print(urllib.request.urlopen("https://a.allowed.test/public/py", timeout=9).status)'
cat api.secret; ls ca; echo "secret $(cat api.secret | wc -c)"; env | grep -c '^SSL_CERT_FILE='`)
	for _, want := range []string{"origin ", `"class":"path-denied"`, `"class":"default-deny"`, "\n200\n", "secret 0\n1\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("printed %q (%s), want %q", r.out, r.talk, want)
		}
	}
	if strings.Contains(r.out, realSecret) || strings.Contains(r.out, "key") {
		t.Errorf("printed %q", r.out)
	}
}

// TestRunRefusesWhereThereIsNoSandbox takes user namespaces away.
func TestRunRefusesWhereThereIsNoSandbox(t *testing.T) {
	d := newDaemon(t, runPolicy)
	ran := filepath.Join(d.dir, "ran")
	cmd := exec.Command("unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh",
		Egressd.Path(), "run", "--config", d.config, "--", "touch", ran)
	cmd.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	var talk bytes.Buffer
	cmd.Stderr = &talk
	d.world.Gateway.Run(cmd)
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(talk.String(), "egressd: hint: allow unprivileged user namespaces") {
		t.Errorf("exit %d, %q", code, talk.String())
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program ran")
	}
}

// TestRunsBesideEachOther has two runs at a time, each with a log of its own.
func TestRunsBesideEachOther(t *testing.T) {
	d := newDaemon(t, runPolicy)
	done := make(chan *ran, 2)
	for range 2 {
		go func() { done <- d.runAs(t, "user", `curl -sS -m9 http://a.allowed.test/; sleep 0.3`) }()
	}
	for range 2 {
		if r := <-done; r.code != 0 || !strings.Contains(r.out, "origin") {
			t.Errorf("exit %d, %q %q", r.code, r.out, r.talk)
		}
	}
	log := exec.Command(Egressd.Path(), "log", "--config", d.config, "--run", "last")
	log.Dir = d.dir
	log.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	out, err := log.Output()
	if err != nil || !strings.Contains(string(out), "a.allowed.test:80") {
		t.Errorf("%v, the log of the last run: %q", err, out)
	}
}

// TestRunKeepsThePolicyAndTrustWhereTheyAre: what was moved aside with the folder above
// it could be replaced for the next run.
func TestRunKeepsThePolicyAndTrustWhereTheyAre(t *testing.T) {
	for user := range users {
		d := newDaemon(t, runPolicy)
		before, err := os.ReadFile(d.config)
		if err != nil {
			t.Fatal(err)
		}
		r := d.runAs(t, user, `mkdir work; echo text >work/a; mv work/a b && cat b
echo >`+d.config+`; rm -f `+d.config+`; mv egressd/trust aside; mv egressd aside; mkdir egressd/trust/x
here=$PWD; cd ..; mv "$here" "$here.aside" && mkdir "$here" && echo 'default: allow' >`+d.config+`
ls -d "$here" "$here/egressd/trust"`)
		want := "text\n" + d.dir + "\n" + filepath.Join(d.dir, "egressd", "trust") + "\n"
		if r.out != want {
			t.Errorf("as %s: it printed %q, want %q (%s)", user, r.out, want, r.talk)
		}
		if after, err := os.ReadFile(d.config); err != nil || !bytes.Equal(after, before) {
			t.Errorf("as %s: the policy is now %q: %v", user, after, err)
		}
	}
}
