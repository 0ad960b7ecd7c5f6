package sshagent

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// realAgent is OpenSSH's own, with keys that have these comments. It returns its socket and the keys' fingerprints.
func realAgent(t *testing.T, comments ...string) (socket string, prints []string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Process.Kill(); agent.Wait() })
	for _, comment := range comments {
		key := filepath.Join(dir, comment)
		outside(t, socket, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", key)
		for {
			if c, err := net.Dial("unix", socket); err == nil {
				c.Close()
				break
			}
		}
		outside(t, socket, "ssh-add", "-q", key)
		prints = append(prints, strings.Fields(outside(t, socket, "ssh-keygen", "-lf", key))[1])
	}
	return socket, prints
}

func outside(t *testing.T, socket string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), "SSH_AUTH_SOCK="+socket)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", argv, err, out)
	}
	return string(out)
}

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	c, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// filtered serves a signer at a socket.
func filtered(t *testing.T, f *Signer, agent string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "f")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("unix", agent)
			if err == nil {
				_ = f.Serve(c, up)
				up.Close()
			}
			c.Close()
		}
	}()
	return socket
}

// TestOpenSSHSignsThroughASigner has OpenSSH's commands ask OpenSSH's agent.
func TestOpenSSHSignsThroughASigner(t *testing.T) {
	agent, prints := realAgent(t, "one", "two")
	keys, err := List(dial(t, agent))
	if err != nil || len(keys) != 2 || keys[0].Comment != "one" || keys[0].Fingerprint() != prints[0] || keys[1].Fingerprint() != prints[1] {
		t.Fatalf("%v %+v, want %q", err, keys, prints)
	}
	var used []string
	f := &Signer{Keys: keys[:1], Used: func(k PublicKey) error { used = append(used, k.Comment); return nil }}
	socket := filtered(t, f, agent)
	if all := outside(t, socket, "ssh-add", "-l"); strings.Count(all, "\n") != 1 || !strings.Contains(all, prints[0]) {
		t.Errorf("listed %q", all)
	}
	public := filepath.Join(filepath.Dir(agent), "one")
	for _, row := range []struct {
		says string
		argv []string
		ok   bool
	}{
		{"sign", []string{"ssh-add", "-T", public + ".pub"}, true},
		{"sign with another", []string{"ssh-add", "-T", filepath.Join(filepath.Dir(agent), "two.pub")}, false},
		{"add", []string{"ssh-add", "-q", public}, false},
		{"remove", []string{"ssh-add", "-d", public}, false},
		{"remove all", []string{"ssh-add", "-D"}, false},
		{"load a library", []string{"ssh-add", "-s", "/usr/lib/none.so"}, false},
		{"lock", []string{"sh", "-c", "SSH_ASKPASS_REQUIRE=force SSH_ASKPASS=/bin/echo ssh-add -x"}, false},
	} {
		cmd := exec.Command(row.argv[0], row.argv[1:]...)
		cmd.Env = append(cmd.Environ(), "SSH_AUTH_SOCK="+socket)
		if out, err := cmd.CombinedOutput(); (err == nil) != row.ok {
			t.Errorf("%s: %v, %s", row.says, err, out)
		}
	}
	if !slices.Equal(used, []string{"one"}) {
		t.Errorf("used %q", used)
	}
	if left := outside(t, agent, "ssh-add", "-l"); strings.Count(left, "\n") != 2 {
		t.Errorf("the agent has %q", left)
	}
}

func listed(socket string) ([]PublicKey, error) {
	c, err := Dial(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return List(c)
}

// TestGnuPGSignsThroughASigner has OpenSSH's commands ask gpg-agent, which has one key of GnuPG's.
func TestGnuPGSignsThroughASigner(t *testing.T) {
	home, err := os.MkdirTemp("", "gpg") // whose sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	t.Setenv("GNUPGHOME", home)
	outside(t, "", "gpg", "--batch", "-q", "--passphrase", "", "--quick-gen-key", "dev@allowed.test", "ed25519", "auth")
	grip := regexp.MustCompile(`Keygrip = (\w+)`).FindStringSubmatch(outside(t, "", "gpg", "--batch", "--with-keygrip", "-K"))[1]
	if err := os.WriteFile(filepath.Join(home, "sshcontrol"), []byte(grip+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside(t, "", "gpgconf", "--kill", "gpg-agent")
	agent := exec.Command("gpg-agent", "--enable-ssh-support", "--daemon", "sleep", "60")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside(t, "", "gpgconf", "--kill", "gpg-agent"); agent.Process.Kill(); agent.Wait() })
	socket := filepath.Join(home, "S.gpg-agent.ssh")
	keys, err := listed(socket)
	for ; err != nil; keys, err = listed(socket) { // the agent may close what comes before it is ready
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(keys) != 1 {
		t.Fatalf("%+v", keys)
	}
	through := filtered(t, &Signer{Keys: keys}, socket)
	public := filepath.Join(home, "k.pub")
	if err := os.WriteFile(public, []byte(outside(t, through, "ssh-add", "-L")), 0o600); err != nil {
		t.Fatal(err)
	}
	outside(t, through, "ssh-add", "-T", public)
	if listed := outside(t, "", "ssh-keygen", "-lf", public); !strings.Contains(listed, keys[0].Fingerprint()) {
		t.Errorf("%s for %s", keys[0].Fingerprint(), listed)
	}
}

// recorded is an agent that answers all with the same message, and keeps what it was asked.
type recorded struct {
	answer []byte
	asked  bytes.Buffer
	left   []byte
}

func (r *recorded) Write(b []byte) (int, error) {
	r.left = append(r.left, appendString(nil, r.answer)...)
	return r.asked.Write(b)
}

func (r *recorded) Read(b []byte) (int, error) {
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

// program is a connection over which these bytes come.
type program struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (p *program) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *program) Write(b []byte) (int, error) { return p.out.Write(b) }

// TestASignerAsksNothingElse sends each kind of message, and what is not whole.
func TestASignerAsksNothingElse(t *testing.T) {
	mine, other := []byte("key of mine"), []byte("key of another")
	sign := func(blob []byte, rest ...byte) []byte {
		return append(appendString(appendString([]byte{signRequest}, blob), []byte("text")), rest...)
	}
	bind := appendString([]byte{extension}, []byte(sessionBind))
	for kind := range 256 {
		for _, rest := range [][]byte{nil, {0}, sign(mine, 0, 0, 0, 0)[1:], appendString(nil, []byte("query"))} {
			message := append([]byte{byte(kind)}, rest...)
			if kind == requestIdentities && len(rest) == 0 || bytes.Equal(message, sign(mine, 0, 0, 0, 0)) {
				continue
			}
			if asked := askedFor(t, mine, message, success); asked {
				t.Errorf("%q reached the agent", message)
			}
		}
	}
	for _, row := range []struct {
		says    string
		message []byte
		answer  byte
		asked   bool
	}{
		{"a signature", sign(mine, 0, 0, 0, 4), signResponse, true},
		{"another's key", sign(other, 0, 0, 0, 0), signResponse, false},
		{"no flags", sign(mine), signResponse, false},
		{"more behind it", sign(mine, 0, 0, 0, 0, 0), signResponse, false},
		{"a key that is cut", sign(mine)[:9], signResponse, false},
		{"a session", bind, success, true},
		{"a session of another name", append(appendString([]byte{extension}, []byte(sessionBind+"x")), 1), success, false},
	} {
		if asked := askedFor(t, mine, row.message, row.answer); asked != row.asked {
			t.Errorf("%s: asked the agent: %v", row.says, asked)
		}
	}
	for _, text := range [][]byte{{0, 0, 0, 0}, {0, 4, 0, 1}, {255, 255, 255, 255, 11}, {0, 0, 0, 2, 11}, {0, 0}} {
		agent := &recorded{answer: []byte{success}}
		if err := (&Signer{}).Serve(&program{in: bytes.NewReader(text)}, agent); err == nil || agent.asked.Len() > 0 {
			t.Errorf("%v: %v, asked %q", text, err, agent.asked.Bytes())
		}
	}
}

// askedFor reports whether a message reaches an agent whose answers are of a kind. A program gets that answer or a failure.
func askedFor(t *testing.T, key, message []byte, answer byte) bool {
	t.Helper()
	agent := &recorded{answer: []byte{answer}}
	f := &Signer{Keys: []PublicKey{{key, ""}}}
	p := &program{in: bytes.NewReader(appendString(nil, message))}
	if err := f.Serve(p, agent); err != nil {
		t.Errorf("%q: %v", message, err)
	}
	want := byte(failure)
	if agent.asked.Len() > 0 {
		want = answer
	}
	if got, err := read(&p.out); err != nil || !bytes.Equal(got, []byte{want}) {
		t.Errorf("%q: answer %v, %v", message, got, err)
	}
	return agent.asked.Len() > 0
}

// TestAnAgentThatAnswersSomethingElse is no list of keys, and no signature.
func TestAnAgentThatAnswersSomethingElse(t *testing.T) {
	for _, answer := range [][]byte{{failure}, {identitiesAnswer}, {identitiesAnswer, 0, 0, 0, 1}, {identitiesAnswer, 0, 0, 0, 0, 1}, {identitiesAnswer, 255, 255, 255, 255, 0, 0, 0, 0}} {
		if keys, err := List(&recorded{answer: answer}); !errors.Is(err, errMessage) {
			t.Errorf("%v: %v, %v", answer, keys, err)
		}
	}
	refused := &recorded{answer: []byte{signResponse}}
	f := &Signer{Keys: []PublicKey{{[]byte("k"), ""}}, Used: func(PublicKey) error { return errMessage }}
	if got, err := f.answer(signWith("k"), refused); err != nil || !bytes.Equal(got, []byte{failure}) || refused.asked.Len() > 0 {
		t.Errorf("a use that is refused: %v, %v, asked %q", got, err, refused.asked.Bytes())
	}
	got, err := (&Signer{Keys: []PublicKey{{[]byte("k"), ""}}}).answer(signWith("k"), &recorded{answer: []byte{identitiesAnswer, 0, 0, 0, 0}})
	if err != nil || !bytes.Equal(got, []byte{failure}) {
		t.Errorf("%v, %v", got, err)
	}
}

func signWith(key string) []byte {
	return append(appendString(appendString([]byte{signRequest}, []byte(key)), nil), 0, 0, 0, 0)
}
