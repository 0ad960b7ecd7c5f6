package peers

import (
	"fmt"
	"slices"
	"strings"
)

// A hardenRunner is what the inputs of step-security/harden-runner say (its action.yml, read 2026-11-28).
type hardenRunner struct {
	mode, endpoints word
	store           *setting
}

func (h *hardenRunner) schema() schema {
	const store = "the policy of the store may refuse more; import the list that it has there"
	return schema{
		"egress-policy": into(&h.mode), "allowed-endpoints": into(&h.endpoints),
		"use-policy-store": into(&h.store), "policy": refused(store),
	}.aside(`token disable-telemetry disable-sudo disable-sudo-and-containers disable-file-monitoring exempt-files api-key
		deploy-on-self-hosted-vm`)
}

// readHardenRunner reads the inputs of the step: in a workflow or a composite action with one such step, the step alone, or
// the inputs alone. Options.Name is the job whose step is meant.
func readHardenRunner(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	inputs, err := hardenRunnerInputs(r.Name, top)
	if err != nil {
		return err
	}
	var h hardenRunner
	if err := r.take(inputs, h.schema()); err != nil {
		return err
	}
	if h.store != nil && h.store.text != "false" {
		return h.store.errorf("use-policy-store: the policy of the store may refuse more; import the list that it has there")
	}
	if h.mode.at != nil {
		if err := choice(h.mode.text, "egress-policy", h.mode.at, "audit", "block"); err != nil {
			return err
		}
	}
	if h.mode.text == "audit" {
		r.open = true
		return nil
	}
	for _, text := range strings.Fields(h.endpoints.text) {
		host, ports, ok := cutPort(text)
		if !ok {
			return h.endpoints.at.errorf("allowed-endpoints: %q is no host with a port", text)
		}
		if ports == nil {
			ports = []span{port(443)}
		}
		s, err := hostScope(host, anyDepth)
		if err != nil {
			return h.endpoints.at.errorf("allowed-endpoints: %w", err)
		}
		r.allow(text, s, clause{ports: ports})
	}
	return nil
}

// hardenRunnerInputs finds the inputs that are meant in a file.
func hardenRunnerInputs(name string, top *setting) (*setting, error) {
	jobs, runs := top.at("jobs"), top.at("runs")
	if jobs == nil && runs == nil {
		if with := top.at("with"); with != nil {
			return with, nil
		}
		return top, nil
	}
	var names []string
	var found []*setting
	collect := func(job string, n *setting) {
		steps := n.at("steps")
		if steps == nil {
			return
		}
		for _, step := range steps.list {
			uses := step.at("uses")
			if uses == nil || !strings.HasPrefix(strings.ToLower(uses.text), "step-security/harden-runner@") {
				continue
			}
			if name == "" || name == job {
				inputs := step.at("with")
				if inputs == nil {
					inputs = &setting{kind: isMapping, line: step.line, column: step.column}
				}
				names, found = append(names, job), append(found, inputs)
			}
		}
	}
	if runs != nil {
		collect("", runs)
	}
	if jobs != nil {
		for _, job := range jobs.members {
			collect(job.key, job.value)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return nil, fmt.Errorf("it has no step of step-security/harden-runner")
	case len(slices.Compact(slices.Clone(names))) == len(names):
		return nil, fmt.Errorf("it has such a step in the jobs %s; choose one with --name", strings.Join(names, ", "))
	}
	return nil, fmt.Errorf("it has %d steps of step-security/harden-runner; give a file with the inputs of one", len(found))
}
