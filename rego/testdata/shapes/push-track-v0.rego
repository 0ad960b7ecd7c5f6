# from: Spacelift push policies
# v0
# says: egressd decides connections and requests
package spacelift

track {
	affected
	input.push.branch == input.stack.branch
}

affected {
	some i, j
	startswith(input.push.affected_files[i], input.stack.roots[j])
}

ignore {
	not affected
}
