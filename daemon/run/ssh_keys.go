package run

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox/foreign"
	"github.com/egressd/egressd/sandbox/sshagent"
)

const (
	keyClients  = 16              // that are served at a time
	keyPatience = 5 * time.Second // for the agent's list
)

// sshKeys stand between the program and the user's ssh agent: the program signs with these keys, and asks the agent for
// nothing else.
type sshKeys struct {
	signer sshagent.Signer
	agent  string // its socket, without symbolic links, at which the program finds ours

	socket   string // ours
	listener *foreign.Screen
	serving  sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	open   map[net.Conn]bool
	used   map[string]bool // fingerprints
}

// openKeys looks for the keys of Options.SSHKeys in the user's agents. All must be in one. It returns nil if there are none.
func (o *Options) openKeys() (*sshKeys, error) {
	if len(o.SSHKeys) == 0 {
		return nil, nil
	}
	err := hint.Misused(fmt.Errorf("--ssh-key: there is no ssh agent at SSH_AUTH_SOCK=%s, nor at an IdentityAgent of ~/.ssh/config", os.Getenv(sshAgent)), `eval "$(ssh-agent)"; ssh-add`)
	for _, agent := range slices.Backward(sshAgents()) { // so that the error is about that of SSH_AUTH_SOCK
		k := &sshKeys{agent: agent, open: map[net.Conn]bool{}, used: map[string]bool{}}
		if err = k.find(o.SSHKeys); err == nil {
			return k, nil
		}
	}
	return nil, err
}

// find looks for keys by their fingerprints or comments.
func (k *sshKeys) find(names []string) error {
	all, err := k.list()
	if err != nil {
		return hint.Failed(fmt.Errorf("--ssh-key: ask the ssh agent: %w", err), "ssh-add -l")
	}
	for _, name := range names {
		found := false
		for _, key := range all {
			if name != "" && (key.Fingerprint() == name || key.Comment == name) {
				found = true
				k.signer.Keys = append(k.signer.Keys, key)
			}
		}
		if !found {
			return hint.Misused(fmt.Errorf("--ssh-key %s: the ssh agent has no key with this fingerprint or comment", name), "ssh-add -l")
		}
	}
	return nil
}

func (k *sshKeys) list() ([]sshagent.PublicKey, error) {
	c, err := sshagent.Dial(k.agent)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(keyPatience))
	return sshagent.List(c)
}

// listen makes a socket in a folder that programs do not see. Only the first call does.
func (k *sshKeys) listen(folder string) error {
	if k == nil || k.listener != nil {
		return nil
	}
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := "agent-" + rand.Text()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)}) // since names of sockets are short
	if err != nil {
		return fmt.Errorf("--ssh-key: %w", err)
	}
	l.SetUnlinkOnClose(false)
	k.socket, k.listener = filepath.Join(folder, name), foreign.NewScreen(l, keyClients)
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = foreign.RefuseDescriptors(fd) }) // else the screen ends who sends some
	}
	return nil
}

// unname removes the name of the socket once the program has it at another place.
func (k *sshKeys) unname() {
	if k != nil && k.socket != "" {
		_ = os.Remove(k.socket)
	}
}

// serve serves programs until close.
func (k *sshKeys) serve() {
	slots := make(chan struct{}, keyClients)
	for {
		slots <- struct{}{}
		program, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.serving.Go(func() {
			defer func() { <-slots }()
			defer program.Close()
			agent, err := sshagent.Dial(k.agent)
			if err != nil {
				return // as if the agent had ended
			}
			defer agent.Close()
			if k.keep(program, agent) {
				_ = k.signer.Serve(program, agent) // a program that sends something else has no agent
				k.forget(program, agent)
			}
		})
	}
}

func (k *sshKeys) keep(all ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range all {
		k.open[c] = true
	}
	return !k.closed
}

func (k *sshKeys) forget(all ...net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range all {
		delete(k.open, c)
	}
}

// close ends serve, and all that it serves.
func (k *sshKeys) close() {
	if k == nil || k.listener == nil {
		return
	}
	k.unname()
	k.mu.Lock()
	k.closed = true
	for c := range k.open {
		c.Close()
	}
	k.mu.Unlock()
	k.listener.Cut(time.Second)
	k.serving.Wait()
}

// noteUse records the first signature with a key, and says so at the end.
func (r *runner) noteUse(key sshagent.PublicKey) error {
	k := r.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	print := key.Fingerprint()
	if k.used[print] {
		return nil
	}
	what := "the program signed with the ssh key " + nameOf(key)
	if r.beside == nil {
		if err := r.Gate.Records.Note(record.KindStart, what); err != nil {
			return err
		}
	}
	k.used[print] = true
	fmt.Fprintf(r.talk, "egressd: %s\n", what)
	return nil
}

// serveKeys says which keys the program may sign with, and serves the program.
func (r *runner) serveKeys() {
	if r.keys == nil {
		return
	}
	r.keys.unname()
	var names []string
	for _, key := range r.keys.signer.Keys {
		names = append(names, nameOf(key))
	}
	fmt.Fprintf(r.talk, "egressd: the program may sign with the ssh key %s\n", strings.Join(names, ", "))
	r.keys.signer.Used = r.noteUse
	r.keys.serving.Go(r.keys.serve)
}

func nameOf(key sshagent.PublicKey) string {
	return printable.Text(key.Fingerprint() + " (" + key.Comment + ")")
}
