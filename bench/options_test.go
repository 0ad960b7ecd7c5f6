//go:build linux

package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"-peers", "squid, goproxy", "-scenarios", "ping connect", "-seconds", "0.5", "-rounds", "7", "-json"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.peers, []string{"squid", "goproxy"}) || o.length != 500*time.Millisecond || o.rounds != 7 || !o.json {
		t.Errorf("%+v", o)
	}
	if len(o.scenarios) != 2 || o.scenarios[0].name != "ping" || o.scenarios[1].name != "connect" {
		t.Errorf("scenarios %+v", o.scenarios)
	}
	if o.egressd != "../build/egressd" {
		t.Errorf("egressd is at %q", o.egressd)
	}
}

func TestAllMeansAll(t *testing.T) {
	o, err := parseOptions([]string{"-peers", "all"}, io.Discard)
	if err != nil || len(o.variants) != len(variants()) || len(o.scenarios) != len(scenarios()) || !slices.Equal(o.peers, peerNames()) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	for _, line := range []string{
		"-peers nonesuch", "-scenarios nonesuch", "-variants nonesuch", "-seconds 0", "-seconds -1", "-rounds 0", "-tunnels 0", "-records 0", "more", "-nonesuch",
	} {
		if o, err := parseOptions(strings.Fields(line), io.Discard); err == nil {
			t.Errorf("%s: %+v", line, o)
		}
	}
}

func TestHelpNamesEveryScenarioAndPeer(t *testing.T) {
	var text strings.Builder
	if err := run(context.Background(), []string{"-h"}, io.Discard, &text); err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios() {
		if !strings.Contains(text.String(), "\n  "+s.name+" ") {
			t.Errorf("-h does not explain %s", s.name)
		}
	}
	for _, name := range peerNames() {
		if !strings.Contains(text.String(), name) {
			t.Errorf("-h does not name %s", name)
		}
	}
}
