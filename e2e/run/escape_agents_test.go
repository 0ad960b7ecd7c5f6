package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestEscapesByGPGAgent has the program name a pinentry of its own to the agent outside,
// which would start it there.
func TestEscapesByGPGAgent(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	home := filepath.Join(d.Dir, ".gnupg")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	runOutside(t, d, "gpg-agent", "--homedir", home, "--daemon")
	t.Cleanup(func() { runOutside(t, d, "gpgconf", "--homedir", home, "--kill", "gpg-agent") })
	pinentry := filepath.Join(d.Dir, "pinentry")
	if err := os.WriteFile(pinentry, []byte("#!/bin/sh\ntouch "+d.Dir+"/escaped\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const try = `echo "pinentry-program $PWD/pinentry" >.gnupg/gpg-agent.conf
for s in $PWD/.gnupg/S.*; do timeout 5 gpg-connect-agent --no-autostart -S $s RELOADAGENT 'GET_CONFIRMATION x' /bye 2>&1; done; echo tried`
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			if r := runAs(t, d, user, try); strings.Contains(r.out, "OK\n") || !strings.HasSuffix(r.out, "tried\n") {
				t.Errorf("printed %q (%s)", r.out, r.talk)
			}
			if _, err := os.Stat(filepath.Join(d.Dir, "escaped")); err == nil {
				t.Error("the agent started what the program gave it")
			}
			if r := runAs(t, d, user, try, "--host-socket", filepath.Join(home, "S.gpg-agent")); !strings.Contains(r.out, "OK\n") {
				t.Errorf("with the socket left: %q (%s)", r.out, r.talk)
			}
			os.Remove(filepath.Join(d.Dir, "escaped"))
		})
	}
}

// TestEscapesBySSHAgent has the program look for the agent outside, which loads libraries
// that it is told of.
func TestEscapesBySSHAgent(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	agent := filepath.Join(d.Dir, "ssh.agent")
	ended := exec.Command("ssh-agent", "-D", "-a", agent)
	if err := d.World.Gateway.Start(ended); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended.Process.Kill(); ended.Wait() })
	world.WaitFor(t, "the agent", func() bool { _, err := os.Stat(agent); return err == nil })
	runOutside(t, d, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(d.Dir, "key"))
	t.Setenv("SSH_AUTH_SOCK", agent)
	runOutside(t, d, "ssh-add", "-q", filepath.Join(d.Dir, "key"))
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			if r := runAs(t, d, user, `echo ${SSH_AUTH_SOCK-unset}; SSH_AUTH_SOCK=$PWD/ssh.agent ssh-add -L 2>&1`); !strings.HasPrefix(r.out, "unset\n") || strings.Contains(r.out, "ssh-ed25519") {
				t.Errorf("printed %q (%s)", r.out, r.talk)
			}
			if r := runAs(t, d, user, `ssh-add -L`, "--host-socket", agent); !strings.HasPrefix(r.out, "ssh-ed25519 ") {
				t.Errorf("with the socket left: %q (%s)", r.out, r.talk)
			}
		})
	}
}

// TestEscapesByAnSSHMaster has a connection of OpenSSH outside that others may share: its
// socket is bound by another name than it has.
func TestEscapesByAnSSHMaster(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	at := func(name string) string { return filepath.Join(d.Dir, name) }
	runOutside(t, d, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at("key"))
	// As root it would drop groups, which a user namespace forbids.
	server := exec.Command("unshare", "--user", "--map-user=65534", "--map-group=65534", "/usr/sbin/sshd", "-D", "-f", "/dev/null", "-h", at("key"),
		"-o", "ListenAddress=127.0.0.1:7022", "-o", "AuthorizedKeysFile="+at("key.pub"), "-o", "StrictModes=no", "-o", "PidFile=none")
	if err := d.World.Gateway.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	options := []string{"-F", "none", "-i", at("key"), "-p", "7022", "-S", at("master"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"}
	master := exec.Command("ssh", append(options, "-M", "-N", "nobody@127.0.0.1")...)
	world.WaitFor(t, "the server", func() bool {
		c, err := d.World.Gateway.Dial("tcp", "127.0.0.1:7022")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if err := d.World.Gateway.Start(master); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Process.Kill(); master.Wait() })
	world.WaitFor(t, "the master", func() bool { _, err := os.Stat(at("master")); return err == nil })
	const try = `ssh -F none -S $PWD/master -O check 127.0.0.1 2>&1`
	for user := range world.Users {
		t.Run(user, func(t *testing.T) {
			if r := runAs(t, d, user, try); strings.Contains(r.out, "Master running") || r.code == 0 {
				t.Errorf("exit %d, printed %q (%s)", r.code, r.out, r.talk)
			}
			if r := runAs(t, d, user, try, "--host-socket", at("master")); !strings.HasPrefix(r.out, "Master running") {
				t.Errorf("with the socket left: %q (%s)", r.out, r.talk)
			}
		})
	}
}

// runOutside runs a program beside egressd.
func runOutside(t *testing.T, d *world.Daemon, argv ...string) {
	t.Helper()
	if err := d.World.Gateway.Run(exec.Command(argv[0], argv[1:]...)); err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
}
