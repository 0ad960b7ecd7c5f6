package signals

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// probeLog is a log in which a program asks for so many names and is denied at so many places that they are estimated.
func probeLog() (all []*record.Record) {
	random := rand.New(rand.NewPCG(7, 7))
	begin := time.Date(2026, 11, 20, 9, 5, 0, 0, time.UTC)
	for i := range 4000 {
		r := &record.Record{
			Kind: record.KindOpen, Flow: record.ID(1<<40 + i).String(), Time: begin.Add(time.Duration(i) * 400 * time.Millisecond), Sandbox: "ci", Via: "connect",
			Process: &record.Process{Exe: "/usr/bin/probe"}, Dst: &record.Destination{Host: fmt.Sprintf("h%d.n%d.example", i, random.IntN(2500)), Port: 443},
			Decision: &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"},
		}
		if i%2 == 0 {
			r.Dst.Host = fmt.Sprintf("%x.carried.example", random.Uint64())
		}
		all = append(all, r)
	}
	return all
}

// TestFourReadingsAreTheSame reads one log in four processes.
func TestFourReadingsAreTheSame(t *testing.T) {
	const variable = "READ_SIGNALS_ONCE"
	if os.Getenv(variable) != "" {
		var f Finder
		for _, r := range probeLog() {
			f.Add(r)
		}
		text, err := json.Marshal(f.Suspects())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\nread %x %s\n", sha256.Sum256(text), text)
		return
	}
	var first string
	for i := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFourReadingsAreTheSame$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		text, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		at := slices.Index([]byte(text), '{')
		if read := string(text[max(at, 0) : len(text)-40]); i == 0 {
			first = read
		} else if read != first {
			t.Fatalf("reading %d differs:\n%.600s\n%.600s", i, read, first)
		}
	}
}

// TestAProbeIsOneStory, with a number that more records of it do not change, and another hour, program or sandbox is another one.
func TestAProbeIsOneStory(t *testing.T) {
	begin := time.Date(2026, 11, 20, 9, 5, 0, 0, time.UTC)
	suspect := func(sandbox, program, to string, score int, after time.Duration) Suspect {
		a := Suspect{Score: score, Sandbox: sandbox, Program: program, Destination: to, First: begin.Add(after), Last: begin.Add(after)}
		a.Story = storyOf(&a)
		return a
	}
	all := []Suspect{
		suspect("ci", "probe", "a.example", 90, 0), suspect("ci", "curl", "x.example", 80, 0), suspect("ci", "probe", "b.example", 70, 50*time.Minute),
		suspect("ci", "probe", "c.example", 60, 2*time.Hour), suspect("dev", "probe", "a.example", 50, 0), suspect("ci", "probe", "d.example", 40, time.Minute),
	}
	stories := Stories(all)
	var shape []string
	for _, s := range stories {
		text := ""
		for _, a := range s {
			text += a.Destination + " "
		}
		shape = append(shape, text)
	}
	if want := []string{"a.example b.example d.example ", "x.example ", "c.example ", "a.example "}; !slices.Equal(shape, want) {
		t.Errorf("the stories are %q", shape)
	}
	numbers := map[string]bool{}
	for _, s := range stories {
		numbers[s[0].Story] = true
	}
	if len(numbers) != len(stories) {
		t.Errorf("the numbers are %v", numbers)
	}
	var half, whole Finder
	for i, r := range probeLog() {
		if whole.Add(r); i < 2500 {
			half.Add(r)
		}
	}
	number := func(all []Suspect) string {
		for _, a := range all {
			if a.Destination == "carried.example" {
				return a.Story
			}
		}
		return ""
	}
	if a, b := number(half.Suspects()), number(whole.Suspects()); a == "" || a != b {
		t.Errorf("it was story %q, and is %q", a, b)
	}
}
