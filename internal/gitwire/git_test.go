package gitwire

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runGit runs git in dir, without the configuration of the machine.
func runGit(t *testing.T, dir, in string, args ...string) (out string, err error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir, c.Stdin = dir, strings.NewReader(in)
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_AUTHOR_NAME=lab", "GIT_AUTHOR_EMAIL=lab@allowed.test", "GIT_COMMITTER_NAME=lab", "GIT_COMMITTER_EMAIL=lab@allowed.test")
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	err = c.Run()
	return b.String(), err
}

// receiver makes a repository that takes every push up to its hook, which writes down the commands. It returns the ID of its commit.
func receiver(t *testing.T, dir string) (commit string) {
	t.Helper()
	for _, args := range [][]string{
		{"init", "-q", "--bare", "."}, {"config", "receive.advertisePushOptions", "true"}, {"config", "receive.denyDeleteCurrent", "ignore"},
	} {
		if out, err := runGit(t, dir, "", args...); err != nil {
			t.Fatal(args, err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "hooks", "pre-receive"), []byte("#!/bin/sh\ncat >seen\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	tree, err := runGit(t, dir, "", "mktree")
	if err != nil {
		t.Fatal(err, tree)
	}
	commit, err = runGit(t, dir, "", "commit-tree", "-m", "x", strings.TrimSpace(tree))
	if err != nil {
		t.Fatal(err, commit)
	}
	return strings.TrimSpace(commit)
}

// TestGitUnderstandsTheSame changes pushes at random and gives each to git's own server. Where a push is read here, git must
// not carry out another command than those that were read.
func TestGitUnderstandsTheSame(t *testing.T) {
	dir := t.TempDir()
	id := receiver(t, dir)
	if out, err := runGit(t, dir, "", "update-ref", "refs/heads/main", id); err != nil {
		t.Fatal(err, out)
	}
	whole := []string{
		packet(zero+" "+id+" "+agent+asked) + flush + emptyPack(),
		packet("shallow "+id) + packet(zero+" "+id+" "+agent+asked+" atomic") + packet(id+" "+zero+" refs/heads/main\n") + flush + emptyPack(),
		packet(id+" "+zero+" refs/heads/main"+asked) + flush,
		packet(zero+" "+id+" "+agent+asked+" push-options") + flush + packet("ci.skip") + flush + emptyPack(),
	}
	random := rand.New(rand.NewPCG(37, 68))
	seen := func(body string) (commands []string) {
		os.Remove(filepath.Join(dir, "seen"))
		runGit(t, dir, body, "receive-pack", "--stateless-rpc", ".") // it fails, at the latest by its hook
		text, _ := os.ReadFile(filepath.Join(dir, "seen"))
		return strings.FieldsFunc(string(text), func(c rune) bool { return c == '\n' })
	}
	understood, ran := 0, 0
	for i := range 600 {
		body := whole[i%len(whole)]
		if i >= len(whole) {
			body = changed(random, body, whole)
		}
		theirs := seen(body)
		p, err := ParsePush([]byte(body), true, false)
		if err != nil {
			if i < len(whole) {
				t.Errorf("%q: %v", body, err)
			}
			continue
		}
		understood++
		ours := []string{}
		for _, c := range p.Commands {
			ours = append(ours, c.String())
		}
		if len(theirs) > 0 {
			ran++
		}
		for _, line := range theirs {
			if !slices.Contains(ours, line) {
				t.Errorf("git would carry out %q of\n%q\nread as %q", line, body, ours)
			}
		}
		if i < len(whole) && !slices.Equal(ours, theirs) {
			t.Errorf("git would carry out %q of\n%q\nread as %q", theirs, body, ours)
		}
	}
	if understood < 40 || ran < 20 {
		t.Errorf("%d of 600 were read, and git ran %d of them: too few to compare", understood, ran)
	}
}

// changed returns body with one to three changes.
func changed(random *rand.Rand, body string, others []string) string {
	pieces := []string{flush, "0001", "0004", "\x00", "\n", " ", "PACK", "push-options", packet("ci.skip"), packet(first + " " + second + " refs/heads/main"), packet(zero + " " + first + " refs/heads/other\x00push-options atomic"), emptyPack()}
	for range 1 + random.IntN(3) {
		at := random.IntN(len(body))
		switch random.IntN(8) {
		case 0: // one byte
			body = body[:at] + string([]byte{byte(random.IntN(256))}) + body[at+1:]
		case 1: // one byte less, with the length of the first packet
			body = body[:at] + body[at+1:]
		case 2:
			body = body[:at] + pieces[random.IntN(len(pieces))] + body[at:]
		case 3: // between two packets
			cut := strings.Index(body, flush+"P")
			if cut >= 0 {
				body = body[:cut] + pieces[random.IntN(len(pieces))] + body[cut:]
			}
		case 4: // a packet of another push in front
			other := others[random.IntN(len(others))]
			body = other[:min(len(other), 0xae)] + body
		case 5, 6: // a letter of a name, so that much is still a push
			if at := strings.Index(body, "refs/heads/"); at >= 0 {
				at += len("refs/heads/") + random.IntN(3)
				body = body[:at] + string([]byte("abxyz./-_M")[random.IntN(10)]) + body[at+1:]
			}
		default: // a piece in the first packet, whose length follows
			if end := strings.IndexByte(body, 0); end > 4 {
				piece := pieces[random.IntN(len(pieces))]
				text := body[4:end] + piece
				if rest := body[end:]; len(text)+len(rest) < 4096 {
					if stop := strings.Index(rest, flush); stop > 0 {
						body = packet(text+rest[:stop]) + rest[stop:]
					}
				}
			}
		}
	}
	return body
}

// TestGitTakesTheSameRefs asks git about refs at random.
func TestGitTakesTheSameRefs(t *testing.T) {
	random := rand.New(rand.NewPCG(37, 69))
	parts := []string{"a", "agent", ".", "..", "/", "//", "@", "{", "@{", ".lock", "~", "^", ":", "?", "*", "[", `\`, "-", "é", "_", "+", "x", "!", "#", "%", "HEAD"}
	taken := 0
	for range 500 {
		ref := "refs/heads/"
		for range 1 + random.IntN(4) {
			ref += parts[random.IntN(len(parts))]
		}
		_, err := runGit(t, t.TempDir(), "", "check-ref-format", ref)
		if ours := CheckRef(ref); (ours == nil) != (err == nil) {
			t.Errorf("%q: git says %v, read as %v", ref, err, ours)
		}
		if err == nil {
			taken++
		}
	}
	if taken < 50 {
		t.Errorf("git takes only %d", taken)
	}
}
