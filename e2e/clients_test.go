package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nodeClient opens a tunnel and speaks TLS in it, as Node programs do that
// know of a proxy.
const nodeClient = `
const http = require("http"), tls = require("tls"), fs = require("fs");
const [proxy, host] = process.argv.slice(1);
const [name, port] = proxy.split(":");
http.request({host: name, port, method: "CONNECT", path: host + ":443"}).on("connect", (res, socket) => {
  if (res.statusCode !== 200) { console.log(res.statusCode, res.statusMessage); process.exit(1); }
  const s = tls.connect({socket, servername: host, ca: fs.readFileSync(process.env.LAB_CA)}, () =>
    s.write("GET /node HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"));
  s.pipe(process.stdout);
}).end();
`

// TestClients runs what people run in sandboxes, against hosts with a
// certificate of the lab's own authority. What is allowed works, and what is
// denied fails with words that say who denied it.
func TestClients(t *testing.T) {
	d := start(t, policyText(t, "P0"))
	dir := t.TempDir()
	ca := d.world.origin.ca.file(t)
	d.world.origin.publish(t, dir)
	const blocked = "Blocked by egressd: evil.test"
	for _, row := range []struct {
		says, command, wants string
		works                bool
	}{
		{"curl", "curl -sS --cacert $LAB_CA https://a.allowed.test/curl", "GET /curl", true},
		{"curl over SOCKS", "curl -sS --cacert $LAB_CA -x socks5h://$LAB_PROXY https://a.allowed.test/curl", "GET /curl", true},
		{"curl in clear", "curl -sS http://a.allowed.test/curl", "GET /curl", true},
		{"curl denied", "curl -sS -v https://evil.test/", blocked + ":443 default-deny", false},
		{"curl denied in clear", "curl -sS -i http://evil.test/", blocked + ":80 default-deny", true},
		{"wget", "wget -q -O - --ca-certificate=$LAB_CA https://a.allowed.test/wget", "GET /wget", true},
		{"wget denied", "wget -O - https://evil.test/", blocked, false},
		{"git clone", "GIT_SSL_CAINFO=$LAB_CA git clone -q https://git.allowed.test/repository.git clone && cat clone/file", "from the lab", true},
		{"git clone denied", "GIT_SSL_CAINFO=$LAB_CA git clone https://evil.test/repository.git denied", "403", false},
		{"git clone denied in clear", "git clone http://evil.test/repository.git denied", "remote: " + blocked, false},
		{"npm view", "npm view demonstration version --registry https://npm.allowed.test/registry/", "3.2.1", true},
		{"npm view denied", "npm view demonstration version --registry https://evil.test/registry/", blocked, false},
		{"pip download", "pip download -q --no-deps -d wheels --cert $LAB_CA --index-url https://pypi.allowed.test/simple demonstration && ls wheels", "demonstration-3.2.1", true},
		{"pip download denied", "pip download --no-deps --retries 1 --cert $LAB_CA --index-url https://evil.test/simple demonstration", blocked, false},
		{"Node", "node -e '" + nodeClient + "' $LAB_PROXY a.allowed.test", "GET /node", true},
		{"Node denied", "node -e '" + nodeClient + "' $LAB_PROXY evil.test", "403 " + blocked, false},
	} {
		t.Run(row.says, func(t *testing.T) {
			out, err := d.shell(dir, ca, row.command)
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("%v, printed %q, want %q", err, out, row.wants)
			}
		})
	}
	t.Run("Go", func(t *testing.T) {
		d.expectBody(t, d.browser(nil), "GET", "https://a.allowed.test/go", nil, "GET /go")
	})
	t.Run("Go denied", func(t *testing.T) {
		_, err := d.browser(nil).Get("https://evil.test/")
		if err == nil || !strings.Contains(err.Error(), blocked) {
			t.Errorf("got %v", err)
		}
	})
}

// shell runs a command line in the sandbox, with the variables that programs
// look at for their proxy.
func (d *daemon) shell(dir, ca, line string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	proxy := "http://" + d.address()
	cmd.Env = []string{ // and nothing of the machine's own settings
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"http_proxy=" + proxy, "https_proxy=" + proxy, "HTTP_PROXY=" + proxy, "HTTPS_PROXY=" + proxy, "LAB_PROXY=" + d.address(), "LAB_CA=" + ca,
		"NODE_EXTRA_CA_CERTS=" + ca, "npm_config_update_notifier=false", "npm_config_cache=" + filepath.Join(dir, "npm"), "npm_config_fetch_retries=0",
		"npm_config_userconfig=/dev/null", "npm_config_globalconfig=" + filepath.Join(dir, "none"), "PIP_CONFIG_FILE=/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
	}
	if err := d.world.Sandbox.Start(cmd); err != nil {
		return "", err
	}
	late := time.AfterFunc(3*time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	return out.String(), err
}

// publish has the origin serve a git repository, an npm package and a Python
// one, all made here.
func (o *origin) publish(t *testing.T, dir string) {
	t.Helper()
	makeRepository(t, filepath.Join(dir, "repository.git"))
	o.sites.Store("git.allowed.test", http.FileServer(http.Dir(dir)))
	o.publishNPM()
	o.publishPyPI(t)
}

func (o *origin) publishNPM() {
	site := http.NewServeMux()
	o.sites.Store("npm.allowed.test", site)
	tarball := makeTarball()
	site.HandleFunc("/x.tgz", func(w http.ResponseWriter, _ *http.Request) { w.Write(tarball) })
	site.HandleFunc("/registry/demonstration", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"demonstration","dist-tags":{"latest":"3.2.1"},"versions":{"3.2.1":{"name":"demonstration","version":"3.2.1",`+
			`"dist":{"tarball":"https://npm.allowed.test/x.tgz","shasum":"%x"}}}}`, sha1.Sum(tarball))
	})
}

func (o *origin) publishPyPI(t *testing.T) {
	t.Helper()
	site := http.NewServeMux()
	o.sites.Store("pypi.allowed.test", site)
	const wheel = "demonstration-3.2.1-py3-none-any.whl"
	site.HandleFunc("/simple/demonstration/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><a href=\"/%s\">%s</a>", wheel, wheel)
	})
	content := makeWheel(t)
	site.HandleFunc("/"+wheel, func(w http.ResponseWriter, _ *http.Request) { w.Write(content) })
}

// makeRepository makes a bare repository that a plain file server can serve.
func makeRepository(t *testing.T, path string) {
	t.Helper()
	work := t.TempDir()
	for _, line := range []string{
		"git init -q -b main", "echo from the lab > file", "git add file",
		"git -c user.name=lab -c user.email=lab@allowed.test commit -q -m first",
		"git clone -q --bare . " + path, "git -C " + path + " update-server-info",
	} {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// makeTarball makes an npm package.
func makeTarball() []byte {
	const manifest = `{"name":"demonstration","version":"3.2.1"}`
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	w.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(manifest))})
	io.WriteString(w, manifest)
	w.Close()
	z.Close()
	return b.Bytes()
}

func makeWheel(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{
		"demonstration.py":                       "",
		"demonstration-3.2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: demonstration\nVersion: 3.2.1\n",
		"demonstration-3.2.1.dist-info/WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demonstration-3.2.1.dist-info/RECORD":   "",
	} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, text)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
