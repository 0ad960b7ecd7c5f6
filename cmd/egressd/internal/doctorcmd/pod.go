package doctorcmd

import (
	"fmt"
	"slices"

	"github.com/egressd/egressd/sandbox"
)

// PodUser is the number of the user who egressd is in its image.
const PodUser = 65532

// PodFindings are about this container: whether what runs in it is held by the rules of
// pod-init, which let the user of egressd, with the number uid, pass.
func PodFindings(uid uint32) []Symptom {
	p, err := sandbox.ReadPrivileges()
	if err != nil {
		return []Symptom{{"pod", err.Error(), "a container with /proc"}}
	}
	return append(privilegeFindings(p, uid), sightFinding(uid), RulesFinding())
}

func privilegeFindings(p sandbox.Privileges, uid uint32) []Symptom {
	const check = "pod"
	all := []Symptom{{Check: check, Says: "neither root nor egressd's user"}}
	if slices.Contains(p.UIDs, 0) || slices.Contains(p.UIDs, uid) {
		all[0] = Symptom{check, fmt.Sprintf("it is root or user %d, whom the rules let pass or who may become that user", uid), "securityContext: {runAsNonRoot: true, runAsUser: 1000}"}
	}
	caps := Symptom{Check: check, Says: "no capabilities"}
	if p.Capabilities != 0 {
		caps = Symptom{check, fmt.Sprintf("it has or can get capabilities (%#x): with SETUID it becomes egressd's user, with NET_RAW or NET_ADMIN it sends past the rules", p.Capabilities), "securityContext: {capabilities: {drop: [ALL]}}"}
	}
	gain := Symptom{Check: check, Says: "no new privileges"}
	if p.NewPrivileges {
		gain = Symptom{check, "programs with set-user-ID or file capabilities give it privileges", "securityContext: {allowPrivilegeEscalation: false}"}
	}
	calls := Symptom{Check: check, Says: "system calls are filtered"}
	if p.UnfilteredCall {
		calls = Symptom{check, "its system calls are not filtered", "securityContext: {seccompProfile: {type: RuntimeDefault}}"}
	}
	return append(all, caps, gain, calls)
}

// sightFinding is about a PID namespace that egressd shares.
func sightFinding(uid uint32) Symptom {
	seen, err := sandbox.SeesProcessOf(uid)
	switch {
	case err != nil:
		return Symptom{"pod", err.Error(), "a container with /proc"}
	case seen:
		return Symptom{"pod", "it sees egressd's processes", "shareProcessNamespace: false, hostPID: false"}
	}
	return Symptom{Check: "pod", Says: "egressd's processes are out of sight"}
}

// RulesFinding tries whether the rules of pod-init hold. One empty datagram to an address that
// nobody has leaves where they do not.
func RulesFinding() Symptom {
	left, err := sandbox.TryDatagram()
	switch {
	case err != nil:
		return Symptom{"pod", "whether the rules hold cannot be tried: " + err.Error(), "egressd pod-init, in an init container"}
	case left:
		return Symptom{"pod", "a datagram left: there are no rules, or they do not hold", "egressd pod-init, in an init container before this one"}
	}
	return Symptom{Check: "pod", Says: "a datagram to nowhere is refused"}
}
