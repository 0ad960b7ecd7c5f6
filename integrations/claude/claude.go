// Package claude changes the settings of Claude Code so that its sandbox uses egressd as its proxy.
package claude

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/jsonc"
)

// Merge plans for Claude Code's settings at path that the commands in its sandbox
// use the proxy at port on loopback, for HTTP and for SOCKS5. Comments and layout stay.
// Its errors are [*integrations.ConflictError], [*integrations.ShapeError], and those of reading.
func Merge(path string, port uint16) (*integrations.Plan, error) {
	old, err := integrations.ReadText(path)
	if err != nil {
		return nil, err
	}
	text, byHand := old, fmt.Sprintf(`"sandbox": {"enabled": true, "network": {"httpProxyPort": %d, "socksProxyPort": %d}}`, port, port)
	if len(text) == 0 {
		text = []byte("{}\n")
	}
	doc, err := jsonc.Parse(text)
	if err != nil {
		return nil, &integrations.ShapeError{Path: path, Problem: "it is not JSON: " + err.Error(), ByHand: byHand}
	}
	number := strconv.Itoa(int(port))
	for _, s := range []struct {
		value string
		keys  []string
	}{
		{"true", []string{"sandbox", "enabled"}},
		{number, []string{"sandbox", "network", "httpProxyPort"}},
		{number, []string{"sandbox", "network", "socksProxyPort"}},
	} {
		has, err := doc.Set(s.keys, s.value)
		if err != nil {
			return nil, &integrations.ShapeError{Path: path, Problem: err.Error(), ByHand: byHand}
		}
		if has != "" {
			return nil, &integrations.ConflictError{Path: path, Setting: jsonc.Joined(s.keys), Has: has, Want: s.value}
		}
	}
	text = doc.Pack()
	if err := onlyPorts(old, text, float64(port)); err != nil {
		return nil, &integrations.ShapeError{Path: path, Problem: err.Error(), ByHand: byHand}
	}
	return &integrations.Plan{File: integrations.File{Path: path, Old: old, New: text}, Notes: claudeNotes(text)}, nil
}

// onlyPorts reads both texts as Claude Code does, the last of two equal keys
// counting, and wants them to differ in the three settings alone.
func onlyPorts(old, text []byte, port float64) error {
	before := map[string]any{}
	if len(old) > 0 {
		if err := json.Unmarshal(jsonc.Standard(old), &before); err != nil {
			return err
		}
	}
	var after map[string]any
	if err := json.Unmarshal(jsonc.Standard(text), &after); err != nil {
		return err
	}
	sandbox := integrations.Table(before, "sandbox")
	network := integrations.Table(sandbox, "network")
	sandbox["enabled"], network["httpProxyPort"], network["socksProxyPort"] = true, port, port
	if !reflect.DeepEqual(before, after) {
		return errors.New("it says something twice, and cannot be changed for certain")
	}
	return nil
}

func claudeNotes(text []byte) []string {
	notes := []string{
		"this is a request: it holds the commands that Claude Code runs in its sandbox, while that is on, and not what it fetches itself; the boundary is egressd run -- claude",
	}
	var said struct {
		Sandbox struct {
			AllowUnsandboxedCommands *bool
			Network                  struct{ AllowedDomains, DeniedDomains []string }
		}
	}
	_ = json.Unmarshal(jsonc.Standard(text), &said) // lists of another shape are for Claude Code to refuse
	if n := said.Sandbox.Network; len(n.AllowedDomains)+len(n.DeniedDomains) > 0 {
		notes = append(notes, "its own allowedDomains and deniedDomains are not asked any more where egressd is the proxy: have the policy say what they say")
	}
	if a := said.Sandbox.AllowUnsandboxedCommands; a == nil || *a {
		notes = append(notes, `a command that fails may be run again outside of the sandbox, if you say so; "allowUnsandboxedCommands": false ends that`)
	}
	return notes
}
