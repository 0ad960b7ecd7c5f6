package world

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Shell runs a command line in the sandbox, with the variables that programs
// look at for their proxy.
func (d *Daemon) Shell(dir, ca, line string) (string, error) {
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	proxy := "http://" + d.Address()
	cmd.Env = []string{ // and nothing of the machine's own settings
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"http_proxy=" + proxy, "https_proxy=" + proxy, "HTTP_PROXY=" + proxy, "HTTPS_PROXY=" + proxy, "LAB_PROXY=" + d.Address(),
	}
	for name, value := range ClientVariables(dir, ca) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if err := d.World.Sandbox.Start(cmd); err != nil {
		return "", err
	}
	late := time.AfterFunc(3*time.Minute, func() { cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	return out.String(), err
}

// Publish has the origin serve a git repository and packages for npm, Python and
// Go, all made here.
func (o *Origin) Publish(t *testing.T, dir string) {
	t.Helper()
	MakeRepository(t, filepath.Join(dir, "repository.git"))
	o.Sites.Store("git.allowed.test", http.FileServer(http.Dir(dir)))
	o.publishNPM()
	o.publishPyPI(t)
	o.publishGo(t)
}

func (o *Origin) publishNPM() {
	site := http.NewServeMux()
	o.Sites.Store("npm.allowed.test", site)
	tarball := makeTarball()
	site.HandleFunc("/x.tgz", func(w http.ResponseWriter, _ *http.Request) { w.Write(tarball) })
	site.HandleFunc("/registry/demonstration", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"demonstration","dist-tags":{"latest":"3.2.1"},"versions":{"3.2.1":{"name":"demonstration","version":"3.2.1",`+
			`"dist":{"tarball":"https://npm.allowed.test/x.tgz","shasum":"%x"}}}}`, sha1.Sum(tarball))
	})
}

func (o *Origin) publishPyPI(t *testing.T) {
	t.Helper()
	site := http.NewServeMux()
	o.Sites.Store("pypi.allowed.test", site)
	const wheel = "demonstration-3.2.1-py3-none-any.whl"
	site.HandleFunc("/simple/demonstration/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><a href=\"/%s\">%s</a>", wheel, wheel)
	})
	content := makeWheel(t)
	site.HandleFunc("/"+wheel, func(w http.ResponseWriter, _ *http.Request) { w.Write(content) })
}

// publishGo serves a module as a proxy of modules does.
func (o *Origin) publishGo(t *testing.T) {
	t.Helper()
	const module, version = "allowed.test/demonstration", "v3.2.1"
	const mod = "module " + module + "\n"
	content := map[string]string{
		".info": `{"Version":"` + version + `","Time":"2026-01-02T03:04:05Z"}`,
		".mod":  mod,
		".zip":  string(makeZip(t, map[string]string{module + "@" + version + "/go.mod": mod})),
	}
	site := http.NewServeMux()
	o.Sites.Store("go.allowed.test", site)
	for suffix, text := range content {
		site.HandleFunc("/"+module+"/@v/"+version+suffix, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
	}
}

// MakeRepository makes a bare repository that a plain file server can serve.
func MakeRepository(t *testing.T, path string) {
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
	return makeZip(t, map[string]string{
		"demonstration.py":                       "",
		"demonstration-3.2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: demonstration\nVersion: 3.2.1\n",
		"demonstration-3.2.1.dist-info/WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"demonstration-3.2.1.dist-info/RECORD":   "",
	})
}

// makeZip makes an archive of files, by their names.
func makeZip(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
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

// ServeRepositories serves the repositories in a folder by git itself, for reading and writing.
func (o *Origin) ServeRepositories(t *testing.T, host, dir string) {
	t.Helper()
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	o.Sites.Store(host, &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Root: "/", Stderr: io.Discard,
		Env: []string{
			"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		},
	})
}

// Whole has the handler see a body of known length: CGI takes no other, and real servers take any.
func Whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		h.ServeHTTP(w, r)
	})
}
