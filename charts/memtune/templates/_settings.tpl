{{/* The operator's settings as environment variables. Omitted ones have the operator's defaults. */}}
{{- define "memtune.settings" -}}
- name: MEMTUNE_OPERATOR_RUNNER_IMAGE
  value: {{ include "memtune.image" (list . .Values.runnerImage) | quote }}
- name: MEMTUNE_OPERATOR_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: MEMTUNE_OPERATOR_METRICS_PORT
  value: {{ .Values.metrics.port | quote }}
- name: MEMTUNE_OPERATOR_LIVENESS_PORT
  value: {{ .Values.healthPort | quote }}
- name: MEMTUNE_OPERATOR_READ_NODES
  value: {{ .Values.rbac.readNodes | quote }}
{{- with include "memtune.namespaces" . }}
- name: MEMTUNE_OPERATOR_NAMESPACES
  value: {{ . | quote }}
{{- end }}
{{- with .Values.gangs }}
- name: MEMTUNE_OPERATOR_GANGS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.gpuHourPrices }}
{{- $prices := list }}
{{- range $product, $price := . }}
{{- $prices = append $prices (printf "%s=%s" $product (toJson $price)) }}
{{- end }}
- name: MEMTUNE_OPERATOR_GPU_HOUR_PRICES
  value: {{ join "," $prices | quote }}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}
- name: MEMTUNE_OPERATOR_LEASE_NAMESPACE
  value: {{ .Release.Namespace | quote }}
- name: MEMTUNE_OPERATOR_LEASE_NAME
  value: {{ include "memtune.fullname" . | quote }}
{{- end }}
{{- include "memtune.policy" .Values.policy }}
{{- end -}}

{{- define "memtune.policy" -}}
{{- $policy := . }}
{{- with .podSecurity }}
{{- range $name := list "hostPath" "hostNetwork" "privileged" }}
{{- if eq (toString (get $policy $name)) "true" }}
{{- fail (printf "policy.%s is true, which policy.podSecurity restricted forbids: set it to false or null" $name) }}
{{- end }}
{{- end }}
- name: MEMTUNE_OPERATOR_POD_SECURITY
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := dict "ALLOWED_NAMESPACES" .allowedNamespaces "DENIED_NAMESPACES" .deniedNamespaces "SERVICE_ACCOUNTS" .serviceAccounts }}
{{- with $value }}
- name: MEMTUNE_OPERATOR_{{ $name }}
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := dict "ALLOW_HOST_PATH" .hostPath "ALLOW_HOST_NETWORK" .hostNetwork "ALLOW_PRIVILEGED" .privileged }}
{{- if kindIs "bool" $value }}
- name: MEMTUNE_OPERATOR_{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}
