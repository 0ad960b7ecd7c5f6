package hostsockets

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestHostSocketsThatVariablesName(t *testing.T) {
	for value, want := range map[string][]string{
		"unix:path=/run/user/7/bus":           {"/run/user/7/bus"},
		"unix:path=/a,guid=0123;unix:path=/b": {"/a", "/b"},
		"unix:///run/user/7/docker.sock":      {"/run/user/7/docker.sock"},
		"/tmp/tmux-7/default,3021,0":          {"/tmp/tmux-7/default"},
		"unix:abstract=/tmp/dbus-x":           nil,
		"tcp://10.0.0.1:2375":                 nil,
		"ssh://host/run/docker.sock":          nil,
		"":                                    nil,
		"relative/path":                       nil,
		"unix:///a/../b":                      {"/b"},
		"/run/user/7/vscode-ipc-0123.sock":    {"/run/user/7/vscode-ipc-0123.sock"},
	} {
		if got := socketPaths(value); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestHostSocketsButThoseThatAreKept(t *testing.T) {
	dir := t.TempDir()
	socket, other := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "other.sock")
	name := filepath.Join(dir, "name.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(socket, name); err != nil {
		t.Fatal(err)
	}
	environ := []string{"DOCKER_HOST=unix://" + socket, "TMUX=" + other + ",1,0", "SSH_AUTH_SOCK=/agent", "HOME=/home/u", "GNUPGHOME=/keys"}
	all := Of(1234, environ, nil)
	for _, want := range []string{socket, other, "/agent", "/run/user/1234/bus", "/run/docker.sock", "/tmp/tmux-1234", "/run/user/1234/gnupg", "/home/u/.gnupg/S.gpg-agent", "/home/u/.gnupg/S.scdaemon", "/keys/S.gpg-agent.ssh"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is open", want)
		}
	}
	some := Of(1234, environ, []string{name, "/run/podman/podman.sock", "/agent"})
	if slices.Contains(some, "/agent") {
		t.Error("an agent that was asked for is hidden")
	}
	if slices.Contains(some, socket) || slices.Contains(some, "/run/podman") || !slices.Contains(some, other) {
		t.Errorf("with two kept: %q", some)
	}
}
