package run

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

const (
	sshTo443 = `ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o UserKnownHostsFile=/dev/null -p 443 git@%s true 2>&1`
	gitTo443 = `env GIT_SSH_COMMAND="ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o UserKnownHostsFile=/dev/null" git ls-remote ssh://git@%s:443/x.git 2>&1`
)

// TestSSHOnThePortOfTLSIsTold what to write, by ssh, git, and the summary; with that line in the policy, ssh passes.
func TestSSHOnThePortOfTLSIsTold(t *testing.T) {
	const host = "b.allowed.test"
	d := world.NewDaemon(t, "version: 1\nallow: [b.allowed.test]\n")
	line := regexp.MustCompile(`\{host: "` + host + `:443", tls: any\}`)
	for _, command := range []string{sshTo443, gitTo443} {
		r := runAs(t, d, "user", "timeout 9 "+fmt.Sprintf(command, host))
		if !strings.Contains(r.out, "Blocked by egressd: "+host+":443 not-tls") || !line.MatchString(r.out) || r.denied(host, "not-tls") == 0 {
			t.Errorf("%q %q %+v", r.out, r.talk, r.records)
		}
		if !line.MatchString(r.talk) {
			t.Errorf("the summary does not say what to write: %s", r.talk)
		}
	}
	r := runAs(t, d, "user", fmt.Sprintf(sshTo443, "evil.test"))
	if !strings.Contains(r.out, "Blocked by egressd: evil.test:443 default-deny") {
		t.Errorf("%q", r.out)
	}
	d.WriteConfig(t, "version: 1\nallow: ["+line.FindString(`{host: "`+host+`:443", tls: any}`)+"]\n")
	if r := runAs(t, d, "user", "timeout 9 "+fmt.Sprintf(sshTo443, host)); strings.Contains(r.out, "Blocked") || r.denied(host, "not-tls") != 0 {
		t.Errorf("with the line: %q %+v", r.out, r.records)
	}
}

// TestDeniedClientsShowWhy where their protocol has words for it.
func TestDeniedClientsShowWhy(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"*.allowed.test\"]\n")
	for says, script := range map[string]string{
		"smtplib": `import smtplib; smtplib.SMTP("evil.test", 25, timeout=9)`,
		"ftplib":  `import ftplib; ftplib.FTP("evil.test", timeout=9)`,
		"imaplib": `import imaplib; imaplib.IMAP4("evil.test", timeout=9)`,
		"poplib":  `import poplib; poplib.POP3("evil.test", timeout=9)`,
		"raw ssh": `import socket; s = socket.create_connection(("evil.test", 2022)); s.sendall(b"SSH-2.0-x\r\n"); print(s.recv(9999))`,
		"Redis":   `import socket; s = socket.create_connection(("evil.test", 6379)); s.sendall(b"*1\r\n$4\r\nPING\r\n"); print(s.recv(9999))`,
	} {
		r := runAs(t, d, "user", "timeout 20 /usr/bin/python3 -c '"+script+"' 2>&1")
		if !strings.Contains(r.out, "Blocked by egressd: evil.test:") {
			t.Errorf("%s: %q", says, r.out)
		}
	}
}
