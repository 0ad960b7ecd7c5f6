package run

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunTakesCommandsAsTheyComeToHand has scripts and words that a shell would take.
func TestRunTakesCommandsAsTheyComeToHand(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	writeFiles(t, d, 0o755, map[string]string{"plain": "echo script $0 $1 $#\n", "empty": "", "binary": "\x7fELF\x00\x00", "lost": "#!/nowhere\n"})
	for _, row := range []struct {
		argv []string
		code int
		want string // in what is printed
	}{
		{[]string{"./plain", "a", "b"}, 0, "script ./plain a 2\n"},
		{[]string{"./empty"}, 0, ""},
		{[]string{"./binary"}, 126, "egressd: hint: file ./binary"},
		{[]string{"npm test"}, 127, "egressd: hint: egressd run -- npm test, without"},
		{[]string{"  ls  -l "}, 127, "egressd: hint: egressd run -- ls -l, without"},
		{[]string{"FOO=1", "true"}, 127, "egressd: hint: egressd run -- env 'FOO=1' COMMAND"},
		{[]string{"echo a | wc"}, 127, "egressd: hint: egressd run -- sh -c 'echo a | wc'"},
		{[]string{"no-such-program"}, 127, "egressd: hint: egressd run -- COMMAND, with the path"},
		{[]string{"./lost"}, 127, "egressd: hint: egressd run -- COMMAND, with the path"},
		{[]string{world.Egressd.Path(), "run", "--allow", "a.test", "--", "true"}, 125, "this is inside of an egressd run"},
		{[]string{"sh", "-c", "echo ${NODE_CHANNEL_FD-unset} ${LISTEN_FDS-unset}"}, 0, "unset unset\n"},
	} {
		for user := range world.Users {
			cmd := jailed(t.Context(), d, user, nil, row.argv...)
			cmd.Env = append(cmd.Env, "NODE_CHANNEL_FD=3", "LISTEN_FDS=1")
			var all strings.Builder
			cmd.Stdout, cmd.Stderr = &all, &all
			if _ = d.World.Gateway.Run(cmd); codeOf(cmd.ProcessState) != row.code || !strings.Contains(all.String(), row.want) {
				t.Errorf("%s: %q: exit %d, want %d: %s", user, row.argv, codeOf(cmd.ProcessState), row.code, all.String())
			}
		}
	}
}

// TestRunStartsBesideSocketsThatComeAndGo has another process bind and remove one all the time.
func TestRunStartsBesideSocketsThatComeAndGo(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	path := filepath.Join(d.Dir, "racing.sock")
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
			}
			l, err := d.World.Gateway.Listen("unix", path)
			if err == nil {
				l.Close()
			}
		}
	}()
	for range 40 {
		if r := runAs(t, d, "user", "true"); r.code != 0 {
			t.Errorf("exit %d: %s", r.code, r.talk)
		}
	}
	close(over)
	<-done
}

// TestRunHidesFoldersOfSocketsAsOwnOnes has a program make its sockets where a service outside has its own.
func TestRunHidesFoldersOfSocketsAsOwnOnes(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	folder := filepath.Join(d.Dir, ".screen")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := d.World.Gateway.Listen("unix", filepath.Join(folder, "outer"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for user := range world.Users {
		r := runAs(t, d, user, `ls $HOME/.screen; stat -c '%a %U' $HOME/.screen | sed "s/$(id -un)/me/"; socat -u OPEN:/dev/null UNIX-LISTEN:$HOME/.screen/own & while ! [ -S $HOME/.screen/own ]; do sleep 0.02; done; rm $HOME/.screen/own; echo made`)
		if r.out != "700 me\nmade\n" {
			t.Errorf("%s: %q, %s", user, r.out, r.talk)
		}
	}
	if names, err := os.ReadDir(folder); err != nil || len(names) != 1 {
		t.Errorf("outside there is %v, %v", names, err)
	}
}

// TestRunSaysThatAgentsAreHidden has git sign commits, and ssh.
func TestRunSaysThatAgentsAreHidden(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	agent := filepath.Join(d.Dir, "agent.sock")
	l, err := d.World.Gateway.Listen("unix", agent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, row := range []struct {
		settings string
		argv     []string
		flags    []string
		ssh, gpg bool
	}{
		{"", []string{"true"}, nil, false, false},
		{"", []string{"ssh", "-V"}, nil, true, false},
		{"[commit]\n\tgpgsign = true\n", []string{"true"}, nil, true, true},
		{"[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n", []string{"true"}, nil, true, false},
		{"[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n", []string{"true"}, []string{"--host-socket", agent}, false, false},
	} {
		t.Setenv("SSH_AUTH_SOCK", agent)
		settings := map[string]string{".gitconfig": row.settings, ".ssh/config": ""}
		if row.argv[0] == "ssh" { // which only its settings tell of the agent
			t.Setenv("SSH_AUTH_SOCK", "")
			settings[".ssh/config"] = "IdentityAgent=~/agent.sock\n"
		}
		writeFiles(t, d, 0o600, settings)
		cmd := jailed(t.Context(), d, "user", row.flags, row.argv...)
		var talk strings.Builder
		cmd.Stderr = &talk
		_ = d.World.Gateway.Run(cmd)
		if strings.Contains(talk.String(), "ssh agent is hidden") != row.ssh || strings.Contains(talk.String(), "gpg-agent is hidden") != row.gpg {
			t.Errorf("%q, %q: %s", row.settings, row.argv, talk.String())
		}
	}
}

// TestRunReachesLocalhostByBothAddresses has servers of the host on one of them alone, as those of Vite ([::1]) and of databases in
// containers (127.0.0.1). Clients ask by each address, or by the name and the first address of that.
func TestRunReachesLocalhostByBothAddresses(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, address := range []string{"127.0.0.1:7654", "[::1]:7654"} {
		l, err := d.World.Gateway.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		world.Serve(t, l, func(c net.Conn) { c.Write([]byte("hello\n")) })
		for user := range world.Users {
			if r := runAs(t, d, user, `socat -t2 - TCP:127.0.0.1:7654 </dev/null; socat -t2 - 'TCP6:[::1]:7654' </dev/null
node -e 'require("net").connect({port: 7654, host: "localhost", autoSelectFamily: false}).pipe(process.stdout)' </dev/null
python3 -c 'import socket; print(socket.create_connection(("localhost", 7654), 10).recv(9).decode(), end="")'`, "--host-port", "7654"); r.out != strings.Repeat("hello\n", 4) {
				t.Errorf("%s, a server on %s: %q, %s", user, address, r.out, r.talk)
			}
		}
		l.Close()
	}
}

// TestTmuxStartsUnderRun has a tmux server outside.
func TestTmuxStartsUnderRun(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	t.Setenv("TMUX_TMPDIR", d.Dir)
	outer := exec.Command("tmux", "-f", "/dev/null", "new-session", "-d", "sleep 60")
	outer.Dir = d.Dir
	if out, err := outer.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer exec.Command("tmux", "kill-server").Run()
	r := runAs(t, d, "root", `tmux -f /dev/null new-session -d 'echo inside >from-tmux'; for i in $(seq 100); do [ -e from-tmux ] && break; sleep 0.05; done; cat from-tmux`)
	if r.out != "inside\n" {
		t.Errorf("%q, %s", r.out, r.talk)
	}
}

// TestCommandsForTheOperatorSayThatTheyAreInside has the program type what is for the person outside.
func TestCommandsForTheOperatorSayThatTheyAreInside(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	given := filepath.Join(t.TempDir(), "given.yaml") // a policy that the program itself works on
	if err := os.WriteFile(given, []byte("version: 1\nallow: [a.test]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	inside := func(words ...string) (string, int) {
		var all strings.Builder
		cmd := jailed(t.Context(), d, "user", nil, append([]string{world.Egressd.Path()}, words...)...)
		cmd.Stdout, cmd.Stderr = &all, &all
		_ = d.World.Gateway.Run(cmd)
		return all.String(), codeOf(cmd.ProcessState)
	}
	for _, words := range [][]string{
		{"allow", "evil.test", "--from", "01KB6ZQ410", "--save"}, {"allow", "*.evil.test", "--save", "--config", d.Config}, {"deny", "a.test"}, {"allow", "--list"}, {"answer"}, {"answer", "01KB6ZQ410", "yes"},
		{"log"}, {"log", "verify"}, {"log", "-f"}, {"log", "--runs"}, {"why", "01KB6ZQ410"}, {"ui"}, {"policy", "suggest"}, {"policy", "replay"}, {"check", "evil.test"}, {"policy", "check"}, {"doctor"}, {"doctor", "--inside"}, {"doctor", "--escapes"}, {"reload"}, {"cut", "01KB6ZQ410"}, {"status"}, {"policy", "trust"},
	} {
		said, code := inside(words...)
		if code != 1 || !strings.Contains(said, "this is inside of an egressd run") || !strings.Contains(said, "outside: egressd "+words[0]) {
			t.Errorf("%q: exit %d: %s", words, code, said)
		}
	}
	for _, words := range [][]string{{"version"}, {"log", "--help"}, {"help", "allow"}, {"policy", "show", "presets"}, {"check", "--config", given, "a.test"}, {"policy", "check", given}} {
		if said, code := inside(words...); code != 0 {
			t.Errorf("%q: exit %d: %s", words, code, said)
		}
	}
}
