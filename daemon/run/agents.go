package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/daemon/hostpaths"
)

// keyPrograms are programs that ask an agent for keys.
var keyPrograms = []string{"git", "ssh", "scp", "sftp", "rsync", "gpg", "ansible", "ansible-playbook"}

// sayAgents says that the agents which hold keys are hidden, where the program is likely to ask one: it is one of
// keyPrograms, or git signs commits here.
func (r *runner) sayAgents() {
	signs, byKey := signsCommits()
	if !signs && !slices.Contains(keyPrograms, filepath.Base(r.argv[0])) {
		return
	}
	left := hostpaths.Reals(r.options.HostSockets)
	if r.keys == nil && slices.ContainsFunc(sshAgents(), func(agent string) bool { return !slices.Contains(left, agent) }) {
		fmt.Fprintln(r.talk, "egressd: the ssh agent is hidden from the program; --ssh-key KEY lets it sign with a key that ssh-add -l lists")
	}
	if signs && !byKey {
		fmt.Fprintln(r.talk, "egressd: gpg-agent is hidden from the program: git cannot sign commits here; sign outside, or git commit --no-gpg-sign")
	}
}

// sshAgents returns the sockets, without symbolic links, at which ssh finds an agent: that of SSH_AUTH_SOCK, and those of IdentityAgent in the
// user's settings of ssh, as password managers say to set.
func sshAgents() (sockets []string) {
	home := os.Getenv("HOME")
	text, _ := os.ReadFile(filepath.Join(home, ".ssh", "config"))
	paths := []string{os.Getenv(sshAgent)}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.Replace(strings.TrimSpace(line), "=", " ", 1), " ")
		if strings.EqualFold(key, "IdentityAgent") {
			path := strings.Trim(strings.TrimSpace(value), `"`)
			if rest, ok := strings.CutPrefix(path, "~/"); ok {
				path = filepath.Join(home, rest)
			}
			paths = append(paths, strings.NewReplacer("%d", home, "${HOME}", home).Replace(path))
		}
	}
	for _, path := range paths {
		if real := hostpaths.Real(path); filepath.IsAbs(path) && isSocket(path) && !slices.Contains(sockets, real) {
			sockets = append(sockets, real)
		}
	}
	return sockets
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// signsCommits reports whether the settings of git say that commits are signed, and with an ssh key. It reads the user's
// settings and those of the repository, and no file that they include.
func signsCommits() (signs, byKey bool) {
	home := os.Getenv("HOME")
	settings := os.Getenv("XDG_CONFIG_HOME")
	if settings == "" {
		settings = filepath.Join(home, ".config")
	}
	for _, path := range []string{"/etc/gitconfig", filepath.Join(settings, "git", "config"), filepath.Join(home, ".gitconfig"), ".git/config"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch value = strings.ToLower(strings.TrimSpace(value)); strings.ToLower(strings.TrimSpace(key)) {
			case "gpgsign":
				signs = value == "true" || value == "1" || value == "yes" || value == "on"
			case "format":
				byKey = value == "ssh"
			}
		}
	}
	return signs, byKey
}
