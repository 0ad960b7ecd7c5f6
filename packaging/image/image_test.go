package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// buildBinary builds egressd as make build does.
func buildBinary(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "egressd")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "../../cmd/egressd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// unpack reads an archive into memory.
func unpack(t *testing.T, text []byte) map[string]archiveFile {
	t.Helper()
	all := map[string]archiveFile{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch) || h.Uid != h.Gid || strings.HasPrefix(h.Name, "/") || all[h.Name].name != "" {
			t.Errorf("%s: %+v", h.Name, h)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = archiveFile{h.Name, h.Mode, h.Uid, content}
	}
}

// blob is what a descriptor of an image points to.
func blob(t *testing.T, files map[string]archiveFile, digest string) []byte {
	t.Helper()
	name, ok := strings.CutPrefix(digest, "sha256:")
	e, there := files[pathOf(name)]
	sum := sha256.Sum256(e.text)
	if !ok || !there || hex.EncodeToString(sum[:]) != name {
		t.Fatalf("there is no blob %s", digest)
	}
	return e.text
}

func decode(t *testing.T, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

func TestImage(t *testing.T) {
	binary := buildBinary(t)
	arch, err := checkBinary(binary)
	if err != nil {
		t.Fatal(err)
	}
	text, err := build(binary, arch, "egressd:test")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := build(binary, arch, "egressd:test"); err != nil || !bytes.Equal(text, again) {
		t.Errorf("a second time it is another image (%v)", err)
	}
	files := unpack(t, text)
	config, files2 := load(t, files)
	if config.Config.User != "65532:65532" || config.Architecture != arch || strings.Join(append(config.Config.Entrypoint, config.Config.Cmd...), " ") != "/usr/bin/egressd serve" {
		t.Errorf("a container of it starts as %+v", config)
	}
	for name, e := range files2 {
		if e.mode&0o6022 != 0 && name != "tmp/" {
			t.Errorf("%s has mode %o", name, e.mode)
		}
		if own := name == "var/lib/egressd/" || name == "run/egressd/"; (e.owner == user) != own {
			t.Errorf("%s belongs to %d", name, e.owner)
		}
	}
	serveFrom(t, files2)
}

// load reads an image by the way of docker load and by that of the OCI, which have to
// come to the same, and returns its configuration and its files.
func load(t *testing.T, files map[string]archiveFile) (config image, fs map[string]archiveFile) {
	t.Helper()
	var docker []dockerManifest
	decode(t, files["manifest.json"].text, &docker)
	var index, whole manifest
	decode(t, files["index.json"].text, &index)
	decode(t, blob(t, files, index.Manifests[0].Digest), &whole)
	if len(docker) != 1 || docker[0].Config != pathOf(whole.Config.Digest[7:]) || docker[0].Layers[0] != pathOf(whole.Layers[0].Digest[7:]) || docker[0].RepoTags[0] != "egressd:test" {
		t.Errorf("for docker it is %+v, for others %+v", docker, whole)
	}
	decode(t, blob(t, files, whole.Config.Digest), &config)
	if len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != whole.Layers[0].Digest {
		t.Errorf("its layers are %v and %v", config.RootFS.DiffIDs, whole.Layers)
	}
	return config, unpack(t, blob(t, files, whole.Layers[0].Digest))
}

// serveFrom starts egressd where there is nothing but the files of the image, as
// the image's user.
func serveFrom(t *testing.T, files map[string]archiveFile) {
	t.Helper()
	root := t.TempDir()
	for _, e := range layer(files["usr/bin/egressd"].text) { // folders come first
		path := filepath.Join(root, e.name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if strings.HasSuffix(e.name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, files[e.name].text, os.FileMode(e.mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// Engines mount a resolv.conf; here there is none.
	policy := "version: 1\nlisten: {proxy: [\"127.0.0.1:0\"]}\nupstream: {dns: [\"127.0.0.1:53\"]}\nallow: [example.com]\n"
	if err := os.WriteFile(filepath.Join(root, "etc/egressd/egressd.yaml"), []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := inside(root, "serve")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	var talk strings.Builder
	for lines.Scan() {
		talk.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "egressd: policy /etc/egressd/egressd.yaml") {
			cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, talk.String())
	}
	if segments, err := filepath.Glob(filepath.Join(root, "var/lib/egressd/audit/*.log")); err != nil || len(segments) == 0 {
		t.Errorf("no log in the volume (%v):\n%s", err, talk.String())
	}
}

// inside is egressd in a container's file system, for the image's user.
func inside(root string, args ...string) *exec.Cmd {
	one := func(host int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: user, HostID: host, Size: 1}}
	}
	return &exec.Cmd{
		Path: "/usr/bin/egressd", Args: append([]string{"egressd"}, args...), Dir: "/",
		Env: []string{"PATH=/usr/bin", "XDG_STATE_HOME=/var/lib"},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, Chroot: root,
			UidMappings: one(os.Getuid()), GidMappings: one(os.Getgid()),
		},
	}
}

// TestRootsAreOfTheModule has the image trust whom Mozilla does, without what this
// machine adds.
func TestRootsAreOfTheModule(t *testing.T) {
	pool := x509.NewCertPool()
	if n := bytes.Count(roots(), []byte("BEGIN CERTIFICATE")); n < 100 || !pool.AppendCertsFromPEM(roots()) {
		t.Errorf("there are %d", n)
	}
}

func TestDynamicBinariesAreRefused(t *testing.T) {
	text, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkBinary(text); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("of /bin/sh it says %v", err)
	}
	if _, err := checkBinary([]byte("#!/bin/sh\n")); err == nil {
		t.Error("a script passes for a binary")
	}
}
